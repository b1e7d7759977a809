"""Where a page comes from: engine contract, hashes, versions, counts; no path, user or host name."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from workbench import __version__

if TYPE_CHECKING:
    from workbench.store import Run
    from workbench.view.redaction import Redaction
    from workbench.view.rows import DrawnRows

_PATH = re.compile(r"(?:^|[\s\"'=:(])(?:~?/[^\s/]+/|[A-Za-z]:[\\/]|\\\\)")
_LIBRARIES = ("numpy", "scikit-learn", "umap-learn", "onnxruntime")

# field of the contract -> words on the page; all are numbers, hashes or names that the workbench gives
_ENGINE_FACTS = {
    "engine_id": "engine",
    "parent": "made from engine",
    "recipe_digest": "recipe",
    "digest": "contract",
    "backend.name": "backend",
    "backend.version": "backend version",
    "backend.target": "target",
    "backend.machine": "built on",
    "backend.driver": "driver",
    "precision.name": "precision",
    "precision.weights": "weights",
    "precision.activations": "activations",
    "precision.accumulators": "accumulators",
    "padding_side": "padding",
    "positions": "positions",
    "norm_point": "norm point",
    "taps": "taps",
    "limits.max_tokens": "longest prompt, tokens",
    "limits.tokens_per_pass": "tokens a pass",
    "verification.same_engine_twice.max_relative_error": "same engine twice, largest relative error",
    "verification.batch_of_one.max_relative_error": "batch of one, largest relative error",
}
_MODEL_FACTS = {
    "checkpoint.name": "name",
    "checkpoint.digest": "weights",
    "checkpoint.format": "format",
    "checkpoint.source_quantization": "stored as",
    "checkpoint.family": "family",
    "checkpoint.n_layers": "layers",
    "checkpoint.d_model": "width",
    "checkpoint.d_vocab": "vocabulary",
    "tokenizer_digest": "tokenizer",
}
_RUN_FACTS = {
    "tokenizer_digest": "tokenizer",
    "template": "chat template",
    "batch_plan": "batch plan",
    "code_version": "extracted by version",
}
_NAMES = ("checkpoint.name",)  # left out where the page is redacted


def field(contract: Mapping[str, Any], path: str) -> Any:
    """Look up a dotted field; None where it is not there."""
    value: Any = contract
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def clean(value: Any) -> Any:
    """Leave out what names a place or a person: absolute paths, this host, this user."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if not isinstance(value, str):
        return value
    if _PATH.search(value) or any(name in value for name in _private_names()):
        return "(left out: names a place)"
    return value


def _private_names() -> list[str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = ""
    # short or common names would take ordinary words with them
    return [
        name
        for name in (platform.node(), user)
        if len(name) > 4 and name not in ("localhost", "linux", "ubuntu", "debian")
    ]


def model_name(run: Run, rule: Redaction) -> str:
    """Name the model of a run as far as the page may."""
    name = field(run.contract, "checkpoint.name")
    shown = clean(str(name)) if name and not rule.active else ""
    return str(shown) if shown and not str(shown).startswith("(") else "the model"


def engine_name(run: Run) -> str:
    """Name an engine in a few words: backend, precision, the first of its id."""
    backend = field(run.contract, "backend.name") or "engine"
    precision = field(run.contract, "precision.name") or ""
    return f"{precision} · {backend} · {str(run.engine_id)[:8]}".strip(" ·")


def engine_facts(run: Run, rule: Redaction, table: Mapping[str, str] = _ENGINE_FACTS) -> list[list[str]]:
    """Give what a contract says, as pairs of words and values."""
    facts = []
    for path, words in table.items():
        value = field(run.contract, path)
        if value is None or (rule.active and path in _NAMES):
            continue
        facts.append([words, _short(clean(value))])
    return facts


def differences(runs: Sequence[Run], rule: Redaction) -> list[list[str]]:
    """Give the fields in which the contracts of two runs differ: words, then one value a run."""
    rows = []
    for table in (_MODEL_FACTS, _ENGINE_FACTS):
        for path, words in table.items():
            values = [_short(clean(field(run.contract, path))) for run in runs]
            if len(set(values)) > 1 and not (rule.active and path in _NAMES):
                rows.append([words, *values])
    return rows


_OURS = ("method", "together", "metric", "task")  # parameters whose texts are the workbench's own words


def result_facts(result: Any, rule: Redaction, *, alone: bool = False) -> list[list[str]]:
    """Give the provenance of a result as pairs of words and values; where it stands alone, also of what it was made."""
    made = result.provenance
    facts = [["seed", str(made.seed)], ["rows", made.sampling]]
    if alone:
        several = {"run": made.runs, "engine": made.engines, "prompt set": [rule.token(name) for name in made.prompts]}
        facts += [[words, name] for words, names in several.items() for name in dict.fromkeys(names) if name]
        facts.append(["taps", _short(made.taps)])
    for name, value in made.parameters.items():
        if value is not None and (not rule.active or name in _OURS or _numeric(value)):
            facts.append([name.replace("_", " "), _long(value)])
    facts.append(["versions", ", ".join(f"{name} {version}" for name, version in made.versions.items())])
    return [*facts, ["computed", made.created]]


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    )


def _long(value: Any) -> str:
    text = ", ".join(_long(item) for item in value) if isinstance(value, list) else ""
    text = text or (f"{value:g}" if isinstance(value, float) else str(value))
    return text if len(text) <= 120 else text[:119] + "…"


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        shown = ", ".join(str(item) for item in value[:6])
        return shown + (f" and {len(value) - 6} more" if len(value) > 6 else "")
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def prompt_facts(run: Run, rows: DrawnRows, rule: Redaction) -> list[list[str]]:
    """Give counts and hashes of the prompts and rows of a run."""
    tokens = int(run.offsets[-1]) if len(run.offsets) else 0
    counts = run.manifest.counts
    facts = [
        ["prompts", f"{run.n_prompts:,}"],
        ["tokens", f"{tokens:,}"],
        ["rows", f"{run.n_rows:,}"],
        ["drawn", rows.sentence()],
        ["prompt set", rule.token(str(run.prompts.content_hash))],
    ]
    facts += [
        ["truncated prompts", f"{counts.truncated_prompts:,}"],
        ["prompts that their tokens cannot spell", f"{counts.lossy_prompts:,}"],
        ["rows with inf or NaN", f"{counts.flagged_rows or 0:,}"],
    ]
    facts += [
        [words, rule.token(str(value))] for name, words in _RUN_FACTS.items() if (value := run.provenance.get(name))
    ]
    stored = ", ".join(f"{tap.name} ({tap.dtype})" for tap in run.manifest.taps)
    return [*facts, ["stored taps", stored], ["run", run_id(run)]]


def run_id(run: Run) -> str:
    """Give the id of a run."""
    return str(run.manifest.run_id)


def provenance_section(
    runs: Sequence[Run],
    rows: DrawnRows | None,
    views: Sequence[tuple[str, list[list[str]]]],
    rule: Redaction,
    *,
    floor: str,
    date: str,
) -> dict[str, Any]:
    """Build the section: a group for the model, each engine, the prompts, each view, and this page."""
    groups = [{"title": "Model", "facts": engine_facts(run, rule, _MODEL_FACTS)} for run in runs[:1]]
    groups += [{"title": f"Engine {engine_name(run)}", "facts": engine_facts(run, rule)} for run in runs]
    if rows is not None:
        groups.append({"title": "Prompts", "facts": prompt_facts(rows.run, rows, rule)})
    groups += [{"title": title, "facts": facts} for title, facts in views]
    page = [["workbench", __version__], ["date", date], ["noise floor", floor]]
    page += [[name, version] for name in _LIBRARIES if (version := _version(name))]
    groups.append({"title": "This page", "facts": page})
    groups = [{"title": group["title"], "facts": clean(group["facts"])} for group in groups]
    return {"type": "provenance", "lead": None, "groups": groups, "json": _as_json(runs, groups, rule)}


def _as_json(runs: Sequence[Run], groups: list[dict[str, Any]], rule: Redaction) -> dict[str, Any]:
    plain = {group["title"]: dict(group["facts"]) for group in groups}
    contracts = [] if rule.active else [clean(dict(run.contract)) for run in runs]
    return {"workbench": "provenance", "version": 1, "groups": plain, "contracts": contracts}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
