"""Verbs of the store: verify, runs, rm, merge, split, export, import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import ContractError
from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from workbench.store.housekeeping import RunSummary
    from workbench.store.reader import Run
    from workbench.verbs import SubParsers

EXAMPLES = {
    "verify": """workbench verify runs/cities
workbench verify runs/cities --sample 1%""",
    "runs": "workbench runs runs",
    "rm": """workbench rm runs/old
workbench rm runs/old --yes""",
    "merge": "workbench merge runs/part-0 runs/part-1 --out runs/whole",
    "split": "workbench split runs/whole --at 2000 --out runs/first --out runs/second",
    "export": """workbench export runs/cities --format npy --tap final_norm --out rows.npy
workbench export runs/cities --format parquet --out rows.parquet
workbench export runs/cities --format safetensors --out rows.safetensors
workbench export runs/cities --format zip --out cities.zip""",
    "import": """workbench import rows.npy --kind npy --prompts prompts.csv --tap final_norm --out runs/imported
workbench import states/ --kind vllm --layer 8 --layer 16 --out runs/vllm
workbench import activations/ --kind saelens --out runs/sae
workbench import cities.zip --kind zip --out runs/cities""",
}


def add_commands(verbs: SubParsers) -> None:
    """Add the verbs of this module to the parsers of `workbench`."""
    _add_checks(verbs)
    _add_housekeeping(verbs)
    _add_exchange(verbs)


def _verb(verbs: SubParsers, name: str, text: str) -> argparse.ArgumentParser:
    return add_verb(verbs, name, text, EXAMPLES[name])


def _add_checks(verbs: SubParsers) -> None:
    verify = _verb(verbs, "verify", "check a run against its checksums and counts")
    verify.add_argument("folder", type=Path, metavar="RUN", help="run folder")
    verify.add_argument("--sample", default="100%", help="share of the batches to check, such as 1%% (default: 100%%)")
    verify.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    verify.set_defaults(run=_verify)
    runs = _verb(verbs, "runs", "list runs with size, rows, engine, status and durability")
    runs.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="folder that holds runs")
    runs.set_defaults(run=_runs)


def _add_housekeeping(verbs: SubParsers) -> None:
    remove = _verb(verbs, "rm", "remove runs for good")
    remove.add_argument("runs", type=Path, nargs="+", help="run folders")
    remove.add_argument("--yes", action="store_true", help="do not ask")
    remove.set_defaults(run=_remove)
    merge = _verb(verbs, "merge", "join disjoint runs of one engine without copying their rows")
    merge.add_argument("runs", type=Path, nargs="+", help="complete runs, in the order wanted")
    merge.add_argument("--out", type=Path, required=True, help="run folder to make")
    merge.set_defaults(run=_merge)
    split = _verb(verbs, "split", "copy a run into several, by prompts")
    split.add_argument("source", type=Path, help="complete run")
    split.add_argument("--at", type=int, action="append", required=True, help="prompt at which the next one begins")
    split.add_argument("--out", type=Path, action="append", required=True, help="run folder to make; once a piece")
    split.set_defaults(run=_split)


def _add_exchange(verbs: SubParsers) -> None:
    export = _verb(verbs, "export", "write a run as npy, Parquet, safetensors or a zip to send")
    export.add_argument("source", type=Path, help="run folder")
    export.add_argument("--format", choices=["npy", "parquet", "safetensors", "zip"], required=True)
    export.add_argument("--tap", action="append", default=[], help="tap to write; again for more")
    export.add_argument("--out", type=Path, required=True, help="file to make")
    export.set_defaults(run=_export)
    bring = _verb(verbs, "import", "make a run of rows from elsewhere, labelled with what is unknown")
    bring.add_argument("source", type=Path, help="file or folder")
    bring.add_argument("--kind", choices=["npy", "vllm", "saelens", "zip"], required=True)
    bring.add_argument("--out", type=Path, required=True, help="run folder to make")
    bring.add_argument("--prompts", type=Path, help="prompts in row order (npy, vllm)")
    bring.add_argument("--tap", default="imported", help="what the rows are (npy; default: imported)")
    bring.add_argument("--positions", choices=["last", "mean", "all"], default="last", help="rows of a prompt (npy)")
    bring.add_argument("--layer", type=int, action="append", default=[], help="layer id asked of vLLM; again for more")
    bring.set_defaults(run=_import)


def share(text: str) -> float:
    """Read a share such as `1%` or `0.01`.

    Raises
    ------
    ContractError
        If it is none from 0 to 1.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ContractError("a sample must be a share", repr(text)[:40], "Write 1% or 0.01.")
    return value


def _verify(options: argparse.Namespace) -> int:
    from workbench.progress import bar
    from workbench.store.verifying import verify_run

    done = 0
    with bar("verify", 1.0, "") as step:

        def progress(now: int, total: int) -> None:
            nonlocal done
            step((now - done) / total)
            done = now

        verification = verify_run(options.folder, sample=share(options.sample), seed=options.seed, progress=progress)
    print(verification)
    return 0 if verification else 1


def _runs(options: argparse.Namespace) -> int:
    from workbench.store.housekeeping import list_runs

    found = list_runs(options.folder)
    for one in found:
        print(_line(one))
    print(f"{len(found)} runs in {options.folder}")
    return 0


def _line(one: RunSummary) -> str:
    engine = (one.engine_id or "no engine")[:12]
    text = f"{one.path}  {one.status}  {one.prompts:,} prompts  {one.rows:,} rows  {_size(one.size_bytes)}"
    text += f"  engine {engine}  durability {one.durability}  {', '.join(one.taps)}"
    return f"{text}\n  {one.problem}" if one.problem else text


def _size(n_bytes: int) -> str:
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _remove(options: argparse.Namespace) -> int:
    from workbench.store.housekeeping import list_runs, remove_run

    for path in options.runs:
        found = [one for one in list_runs(path) if one.path == path]
        print(_line(found[0]) if found else f"{path}: no run that opens")
        if not options.yes and not _agreed(f"Remove {path} for good? [y/N] "):
            print(f"{path} is kept.")
            continue
        print(f"{path} is removed; {_size(remove_run(path))} freed.")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ContractError("removing needs a yes", "no terminal to ask at", "Pass --yes.")
    return input(question).strip().lower() in ("y", "yes")


def _merge(options: argparse.Namespace) -> int:
    from workbench.store.merging import merge_runs

    print(merge_runs(options.runs, options.out))
    return 0


def _split(options: argparse.Namespace) -> int:
    from workbench.store.splitting import split_run

    for run in split_run(options.source, options.out, options.at):
        print(run)
    return 0


def _export(options: argparse.Namespace) -> int:
    from workbench.store.exchange import export_run
    from workbench.store.reader import open_run

    run = open_run(options.source)
    out = export_run(run, options.out, format=options.format, taps=tuple(options.tap))
    print(f"{out} ({_size(out.stat().st_size)})")
    return 0


def _import(options: argparse.Namespace) -> int:
    run = _imported(options)
    print(run)
    for what, why in run.provenance.get("unknown", {}).items():
        print(f"  {what}: {why}")
    return 0


def _imported(options: argparse.Namespace) -> Run:
    prompts = None
    if options.prompts is not None:
        from workbench.prompts import load_prompts

        prompts = load_prompts(options.prompts)
    if options.kind == "zip":
        from workbench.store.importing.archive import import_zip

        return import_zip(options.source, out=options.out)
    if options.kind == "saelens":
        from workbench.store.importing.saelens import import_saelens

        return import_saelens(options.source, out=options.out)
    if options.kind == "vllm":
        from workbench.store.importing.vllm import import_vllm

        return import_vllm(options.source, layers=options.layer, out=options.out, prompts=prompts)
    if prompts is None:
        raise ContractError("an npy file needs its prompts", "none", "Pass --prompts FILE, in row order.")
    from workbench.store.importing.npy import import_npy

    return import_npy(options.source, out=options.out, tap=options.tap, prompts=prompts, positions=options.positions)
