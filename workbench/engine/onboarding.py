"""Onboarding sheet: one page for the people who will use an engine, made from its contract alone."""

from __future__ import annotations

import html as markup
import json
import shlex
from typing import TYPE_CHECKING

from workbench.engine.again import rebuild_command
from workbench.engine.opening import RECIPE_FILE, check_files, read_contract
from workbench.errors import EngineError, shown
from workbench.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workbench.engine.contract import Contract

Facts = tuple[tuple[str, str], ...]
Sections = tuple[tuple[str, Facts], ...]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1d2733}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin:1.6rem 0 .3rem}table{border-collapse:collapse;width:100%}"
    "th{text-align:left;font-weight:600;vertical-align:top;padding:.25rem 1rem .25rem 0;white-space:nowrap}"
    "td{padding:.25rem 0;overflow-wrap:anywhere}pre{background:#f2f4f7;padding:.8rem;overflow:auto}"
)


def facts_of(contract: Contract) -> Sections:
    """Say in sections what a contract holds.

    Returns
    -------
    tuple of (title, facts)
        Each fact is a name and a text.
    """
    return (
        ("What it is", _identity(contract)),
        ("What it reads", _reads(contract)),
        ("What it emits", _emits(contract)),
        ("How exact it is", _error(contract)),
        ("Whether it repeats itself", _repeats(contract)),
        ("What it costs", _cost(contract)),
        ("Whom it excludes", _excludes(contract)),
    )


def calls_of(contract: Contract, place: str, keep: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Give the lines that use and rebuild the engine: a title and code each."""
    rebuild = rebuild_command(contract, keep)
    python = "\n".join(
        (
            "import workbench as wb",
            "",
            f"engine = wb.open_engine({place!r}, expect={contract.engine_id!r})",
            'run = wb.extract(wb.load_prompts("prompts.csv"), engine, out="runs/first")',
            f"rows = run.tap({contract.taps[0]!r})",
        )
    )
    return (
        ("From Python", python),
        ("From a shell", f"workbench extract prompts.csv --engine {shlex.quote(place)} --out runs/first"),
        (
            "To build it again",
            f"# CHECKPOINT is {visible(contract.checkpoint.name)}, digest {contract.checkpoint.digest}\n{rebuild}",
        ),
    )


def _identity(c: Contract) -> Facts:
    p = c.checkpoint
    origin = f", weights {p.source_quantization} in the file" if p.source_quantization else ""
    facts = [
        ("Engine", c.engine_id),
        ("Checkpoint", f"{p.name}, {p.family}, {p.n_layers} layers of {p.d_model}{origin}"),
        ("Precision", (f"{c.precision.name}: weights {c.precision.weights}; activations {c.precision.activations}; "
                      f"sums {c.precision.accumulators}")),
        ("Backend", f"{c.backend.name} {c.backend.version}, compiled for {c.backend.target}"),
        ("Contract", f"schema {c.schema_version}, digest {c.digest}"),
    ]  # fmt: skip
    if c.parent:
        facts.append(("Follows", f"{c.parent} in a sequence of builds" + (f", as {c.name}" if c.name else "")))
    if c.precision.kept_layers:
        facts.append(("Kept in higher precision", ", ".join(c.precision.kept_layers)))
    return tuple(facts)


def _reads(c: Contract) -> Facts:
    limits = c.limits
    most = f", {limits.prompts_per_pass} prompts" if limits.prompts_per_pass else ""
    text = "texts or token ids" if c.tokenizer_digest else "token ids only; it has no tokenizer"
    return (
        ("Prompts", f"{text}, at most {limits.max_tokens} tokens each; a longer one is refused, never cut silently"),
        ("Pass", f"at most {limits.tokens_per_pass} tokens{most}, padded on the {c.padding_side}"),
        ("Token ids", f"0 to {c.checkpoint.d_vocab - 1}"),
        *((row.name, f"{row.dtype} [{', '.join(row.axes)}], in {row.place} memory") for row in c.inputs),
    )


def _emits(c: Contract) -> Facts:
    words = {"all": "every token", "last": "the last token of each prompt", "mean": "the mean over each prompt"}
    rows = words[c.positions] if isinstance(c.positions, str) else f"the token offsets {list(c.positions)}"
    facts = [("Rows", f"{rows}, in the order of the prompts"), ("Norm", c.norm_point)]
    facts += [(r.name, f"{r.dtype} [{', '.join(r.axes)}]") for r in c.outputs if c.cache is None or r.name in c.taps]
    if c.cache is not None:
        facts.append(
            (
                "Cache",
                f"{len(c.cache.outputs)} outputs, {c.cache.bytes_per_token:,.0f} bytes a token, and one greedy token",
            )
        )
    return tuple(facts)


def _error(c: Contract) -> Facts:
    v = c.verification
    facts = [("Measured against", f"{v.reference}, over {v.reference_rows} rows")]
    if not v.engine_ran:
        facts.append(
            ("Not run", "It was built for a card that was not there; the figures are those of its twin on a CPU.")
        )
    for tap, verdict in v.taps.items():
        facts.append(
            (
                tap,
                (
                    f"relative error {verdict.mean_relative_error:.3g} in the mean, {verdict.worst_relative_error:.3g} "
                    f"at the worst token (prompt {verdict.worst_prompt}, row {verdict.worst_token}); largest value "
                    f"{verdict.max_abs:.4g}"
                ),
            )
        )
        part = (v.split or {}).get(tap)
        if part is not None:
            facts.append(
                (f"{tap}, split", (f"{part.numbers_mean:.3g} from the numbers themselves ({v.twin}), "
                                  f"{part.engine_mean:.3g} from this engine")),
            )  # fmt: skip
    facts.append(
        ("Tolerance", f"the build fails above {v.tolerance_mean:g} in the mean or {v.tolerance_worst:g} in a row")
    )
    if v.note:
        facts.append(("Note", v.note))
    return tuple(facts)


def _repeats(c: Contract) -> Facts:
    v = c.verification

    def words(equal: bool, error: float) -> str:
        return "the same bits" if equal else f"equal up to {error:.2g} relative error"

    facts = [
        ("The same engine twice", words(v.same_engine_twice.bit_equal, v.same_engine_twice.max_relative_error)),
        ("A prompt alone or in a batch", words(v.batch_of_one.bit_equal, v.batch_of_one.max_relative_error)),
    ]
    if v.rebuild is None:
        facts.append(("Built again", "not compared"))
    else:
        plan = (
            "the same bytes" if v.rebuild.plan_bytes_equal else f"other bytes in {', '.join(v.rebuild.differing_files)}"
        )
        again = v.rebuild.numbers
        rows = "not run" if again is None else words(again.bit_equal, again.max_relative_error)
        facts.append(("Built again", f"plan: {plan}; rows: {rows}"))
    return tuple(facts)


def _cost(c: Contract) -> Facts:
    b = c.build
    speed = "not measured: it emulates this precision" if b.emulated else "not measured"
    if b.tokens_per_second is not None:
        where = c.backend.processor or c.backend.machine
        speed = f"{b.tokens_per_second:,.0f} tokens per second when it was built, on {where}"
    facts = [
        ("Size", f"{b.plan_bytes / 1e6:,.1f} MB"),
        ("Speed", speed),
        ("Build", f"{b.seconds:,.1f} s on {b.created}"),
    ]
    if b.trial is not None:
        t = b.trial
        facts.append(
            ("Memory", (f"{t.loaded_bytes / 1e6:,.0f} MB loaded, {t.peak_bytes / 1e6:,.0f} MB at most in a pass of "
                       f"{t.pass_tokens} tokens"))
        )  # fmt: skip
    return tuple(facts)


def _excludes(c: Contract) -> Facts:
    card = c.backend.card
    facts = [("Prompts", f"longer than {c.limits.max_tokens} tokens")]
    if c.tokenizer_digest is None:
        facts.append(("Texts", "whoever has no token ids of this vocabulary"))
    if card is not None:
        facts.append(
            ("Cards", (f"every machine without {card.get('name', 'the card')} (compute capability "
                      f"{card.get('compute_capability', '?')}) and {c.backend.name} {c.backend.version}"))
        )  # fmt: skip
    if c.backend.runs:
        facts.append(("Processors", f"the speed is that of {c.backend.runs}; on others, other kernels run"))
    worst = max(v.worst_relative_error for v in c.verification.taps.values())
    facts.append(("Uses", f"that need rows nearer to float32 than {worst:.2g} at the worst token"))
    facts.append(
        ("Generation", "it reads and never writes text" if c.cache is None else "it gives one token and no more")
    )
    return tuple(facts)


def to_markdown(contract: Contract, place: str, keep: Sequence[str] = ()) -> str:
    """Write the sheet as Markdown."""
    lines = [f"# Engine {_plain(contract.checkpoint.name)}, {_plain(contract.precision.name)}", ""]
    for title, facts in facts_of(contract):
        lines += [f"## {title}", "", "| | |", "| --- | --- |"]
        lines += [f"| {_plain(name)} | {_plain(text)} |" for name, text in facts]
        lines.append("")
    for title, code in calls_of(contract, place, keep):
        lines += [f"## {title}", "", *(f"    {line}" for line in _lines(code)), ""]
    return "\n".join(lines)


def to_html(contract: Contract, place: str, keep: Sequence[str] = ()) -> str:
    """Write the sheet as one HTML page that asks for nothing."""
    body = [_tag("h1", f"Engine {contract.checkpoint.name}, {contract.precision.name}")]
    for title, facts in facts_of(contract):
        rows = "".join("<tr>" + _tag("th", name) + _tag("td", text) + "</tr>" for name, text in facts)
        body.append(_tag("h2", title) + "<table>" + rows + "</table>")
    for title, code in calls_of(contract, place, keep):
        body.append(_tag("h2", title) + _tag("pre", "\n".join(_lines(code))))
    head = '<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="' + _POLICY + '">'
    head += _tag("title", f"Engine {contract.checkpoint.name}") + "<style>" + _STYLE + "</style>"
    return '<!doctype html>\n<html lang="en"><head>' + head + "</head><body>\n" + "\n".join(body) + "\n</body></html>\n"


def write_sheet(folder: Path, *, html: Path, markdown: Path) -> None:
    """Write both sheets of an engine folder.

    Raises
    ------
    EngineError
        If the two are one file, or cannot be written.
    EngineRefused
        If the engine is not what its contract says.
    """
    if html.resolve() == markdown.resolve():
        raise EngineError("the two sheets must be two files", shown(html.name), "Give --out and --markdown apart.")
    contract = read_contract(folder)
    place = f"engines/{folder.name}"
    check_files(folder, contract)
    keep = tuple(map(str, json.loads((folder / RECIPE_FILE).read_bytes()).get("keep", ())))
    try:
        html.write_text(to_html(contract, place, keep), encoding="utf-8")
        markdown.write_text(to_markdown(contract, place, keep), encoding="utf-8")
    except OSError as error:
        raise EngineError("the sheets must be writable", error.strerror or "", "Choose another folder.") from error


def _tag(name: str, text: str) -> str:
    """The one place where text enters markup; `name` is always a constant of this module."""
    return "<" + name + ">" + markup.escape(_visible(text), quote=True) + "</" + name + ">"


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def _lines(code: str) -> list[str]:
    return [_visible(line) for line in code.split("\n")]


def _plain(text: str) -> str:
    """Text for a cell of a Markdown table: one line, and nothing in it is markup."""
    line = " ".join(_visible(text).split("\n"))
    for mark in ("\\", "|", "<", "`", "*", "_", "[", "]"):
        line = line.replace(mark, "\\" + mark)
    return line
