"""`workbench engines` and `workbench onboard`: what is in a folder of engines, and what to do with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.escaping import visible
from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from workbench.engine.contract import Contract
    from workbench.engine.registry import Entry, Registry

EXAMPLES = {
    "engines": """workbench engines list
workbench engines name 0f3a91 smollm2-fp32
workbench engines show smollm2-fp32
workbench engines diff smollm2-fp32 smollm2-int8
workbench engines verify smollm2-fp32
workbench engines export smollm2-fp32 --out smollm2-fp32.tar
workbench engines import smollm2-fp32.tar --expect 0f3a91...
workbench engines rm smollm2-int8 --yes""",
    "onboard": """workbench onboard smollm2-fp32
workbench onboard engines/0f3a... --out sheet.html --markdown sheet.md""",
}


def add_commands(verbs: Any) -> None:
    """Add `engines` and `onboard` to the parsers of `workbench`."""
    engines = add_verb(verbs, "engines", "list, name, compare, check, move and remove engines", EXAMPLES["engines"])
    actions = engines.add_subparsers(dest="action", metavar="ACTION", required=True)
    _action(actions, "list", "list the engines of a folder", _list)
    show = _action(actions, "show", "print what an engine is and what was measured", _show, words=("engine",))
    show.add_argument("--json", action="store_true", help="print the whole contract")
    _action(actions, "diff", "say in words what differs between two engines", _diff, words=("a", "b"))
    verify = _action(actions, "verify", "hash an engine's files, then try it", _verify, words=("engine",))
    verify.add_argument("--hashes-only", action="store_true", help="do not load it")
    _action(actions, "name", "let a name stand for an engine", _name, words=("engine", "name"))
    remove = _action(actions, "rm", "remove an engine and its names", _remove, words=("engine",))
    remove.add_argument("--yes", action="store_true", help="remove it; without this, say what would go")
    export = _action(actions, "export", "write an engine as one file", _export, words=("engine",))
    export.add_argument("--out", type=Path, required=True, help="tar file to write")
    take = _action(actions, "import", "take in an exported engine or a copied folder", _import)
    take.add_argument("file", type=Path, help="tar file or engine folder")
    take.add_argument("--expect", metavar="ID", help="engine id that it must have, told by someone you trust")
    take.add_argument("--name", help="name to give it")
    onboard = add_verb(verbs, "onboard", "write a sheet for the people who will use an engine", EXAMPLES["onboard"])
    onboard.add_argument("engine", help="name, start of the id, or folder")
    onboard.add_argument("--in", dest="root", type=Path, default=Path("engines"), help="folder of engines")
    onboard.add_argument("--out", type=Path, help="HTML file (default: NAME.html)")
    onboard.add_argument("--markdown", type=Path, help="Markdown file (default: NAME.md)")
    onboard.set_defaults(run=_onboard)


def _action(actions: Any, name: str, text: str, run: Any, words: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    for word in words:
        parser.add_argument(word, help="a name" if word == "name" else "name, start of the id, or folder")
    parser.add_argument("--in", dest="root", type=Path, default=Path("engines"), help="folder of engines")
    parser.set_defaults(run=run)
    return parser


def _registry(options: argparse.Namespace) -> Registry:
    from workbench.engine.registry import Registry

    return Registry(options.root)


def _contract(options: argparse.Namespace, word: str) -> Contract:
    from workbench.engine.opening import read_contract

    return read_contract(_registry(options).resolve(word))


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(visible(line) for line in lines) + "\n")


def _list(options: argparse.Namespace) -> int:
    entries = _registry(options).entries()
    if not entries:
        _say(f"no engines in {options.root}; make one with: workbench build CHECKPOINT --into {options.root}")
        return 0
    rows: list[tuple[str, ...]] = [("id", "names", "checkpoint", "precision", "backend", "MB", "error", "tokens/s")]
    rows += [_row(entry) for entry in entries]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    _say(*("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows))
    return 1 if any(entry.contract is None for entry in entries) else 0


def _row(entry: Entry) -> tuple[str, ...]:
    c = entry.contract
    if c is None:
        return (entry.folder.name, "", "DAMAGED: " + entry.fault[:80], "", "", "", "", "")
    error = max(verdict.mean_relative_error for verdict in c.verification.taps.values())
    speed = c.build.tokens_per_second
    return (
        c.engine_id[:20],
        ", ".join(entry.names) or (f"({c.name})" if c.name else "-"),  # what a sequence of builds calls it
        c.checkpoint.name,
        c.precision.name,
        c.backend.name,
        f"{c.build.plan_bytes / 1e6:,.1f}",
        f"{error:.2g}",
        "-" if speed is None else f"{speed:,.0f}",
    )


def _show(options: argparse.Namespace) -> int:
    import json

    from workbench.engine.onboarding import facts_of

    contract = _contract(options, options.engine)
    if options.json:
        sys.stdout.write(json.dumps(contract.to_json(), indent=2, sort_keys=True) + "\n")
        return 0
    for title, facts in facts_of(contract):
        _say(title, *(f"  {name}: {text}" for name, text in facts), "")
    return 0


def _diff(options: argparse.Namespace) -> int:
    from workbench.engine.difference import differences

    found = differences(_contract(options, options.a), _contract(options, options.b), names=(options.a, options.b))
    _say(*found)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from workbench.engine.opening import try_engine

    registry = _registry(options)
    contract = registry.verify(options.engine)
    _say(f"{len(contract.files)} files of {contract.engine_id[:20]} are as the contract says")
    if not options.hashes_only:
        found = try_engine(registry.resolve(options.engine))
        _say(f"self-test passed in a process of its own: largest relative error {found['worst']:.3g}")
    return 0


def _name(options: argparse.Namespace) -> int:
    from workbench.engine.names import read_names

    before = read_names(options.root).get(options.name)
    _registry(options).name(options.name, options.engine)
    now = _contract(options, options.name).engine_id
    moved = f", no longer for {before[:20]}" if before not in (None, now) else ""
    _say(f"{options.root / options.name} now stands for {now[:20]}{moved}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    registry = _registry(options)
    if not options.yes:
        _say(*_what_goes(registry, registry.resolve(options.engine)), "Add --yes to do it.")
        return 0
    folder, names = registry.remove(options.engine)
    _say(f"removed {folder}" + (f" and the names {', '.join(names)}" if names else ""))
    return 0


def _what_goes(registry: Registry, folder: Path) -> list[str]:
    """Say what a removal takes, and who will miss it."""
    names = [name for entry in registry.entries() if entry.folder == folder for name in entry.names]
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    lines = [f"would remove {folder}, {size / 1e6:,.1f} MB" + (f", and the names {', '.join(names)}" if names else "")]
    followers = [", ".join(entry.names) or entry.folder.name for entry in registry.children(str(folder))]
    if followers:
        lines.append(f"These follow it in a sequence of builds, and stay: {', '.join(followers)}.")
    lines.append("Runs that it made stay readable, with its contract; resuming or repairing them needs it.")
    return lines


def _export(options: argparse.Namespace) -> int:
    path = _registry(options).export(options.engine, options.out)
    _say(f"wrote {path}, {path.stat().st_size / 1e6:,.1f} MB; engine id {_contract(options, options.engine).engine_id}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from workbench.engine.names import check_alias

    registry = _registry(options)
    if options.name is not None:
        check_alias(options.name)
    folder = registry.import_(options.file, expect=options.expect)
    if options.name is not None:
        registry.name(options.name, str(folder))
    _say(f"took in {folder}")
    return 0


def _onboard(options: argparse.Namespace) -> int:
    from workbench.engine.onboarding import write_sheet

    folder = _registry(options).resolve(options.engine)
    html = options.out or Path(f"{Path(options.engine).name or folder.resolve().name}.html")
    markdown = options.markdown or html.with_suffix(".md")
    write_sheet(folder, html=html, markdown=markdown)
    _say(f"wrote {html} and {markdown}")
    return 0
