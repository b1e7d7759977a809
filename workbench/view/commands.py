"""The verb `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from workbench.store import Run
    from workbench.verbs import SubParsers

EXAMPLES = """workbench report runs/first --out report.html
workbench report runs/fp32 runs/int8 --floor runs/floor --color continent
workbench report runs/first --probe latitude --clusters 12 --umap
workbench report runs/fp32 runs/int8 --probe latitude --all-taps --repeat runs/floor/same-engine
workbench report runs/first --redact all --keep-column continent"""


def add_commands(verbs: SubParsers) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "report", "show one run, or two compared, as one offline HTML file", EXAMPLES)
    parser.add_argument("first", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("second", metavar="RUN2", type=Path, nargs="?", help="the same prompts by another engine")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="file to write (default: report.html)")
    parser.add_argument("--tap", help="tap of map, clusters and probes (default: the last of the run)")
    parser.add_argument("--color", metavar="COLUMN", help="column that colours the map at first")
    parser.add_argument("--umap", action="store_true", help="also fit a UMAP map, which takes a while")
    parser.add_argument("--clusters", type=int, metavar="K", help="also find K clusters")
    parser.add_argument("--probe", action="append", default=[], metavar="COLUMN", help="also fit a linear probe")
    parser.add_argument("--all-taps", action="store_true", help="fit the probes at every tap: score by layer")
    parser.add_argument(
        "--repeat", type=Path, metavar="RUN", help="the first engine again: the floor of probes read on RUN2"
    )
    parser.add_argument("--floor", type=Path, help="measured noise floor for the comparison")
    parser.add_argument("--title", help="a few words")
    parser.add_argument("--redact", type=_redact, metavar="N|all", help="keep N characters of each prompt, or none")
    parser.add_argument("--keep-column", action="append", default=[], metavar="COLUMN", help="shown though redacted")
    parser.set_defaults(run=_report)


def _redact(text: str) -> int | str:
    return text if text == "all" else int(text)


def _report(options: argparse.Namespace) -> int:
    from workbench.store import open_run
    from workbench.view.reporting import report

    runs = [open_run(path) for path in (options.first, options.second) if path is not None]
    path = report(
        *runs,
        *_results(runs, options),
        out=options.out,
        color=options.color,
        title=options.title,
        redact=options.redact,
        keep_columns=options.keep_column,
    )
    print(path)
    return 0


def _results(runs: Sequence[Run], options: argparse.Namespace) -> list[Any]:
    from workbench.analysis import cluster, compare, project

    tap = options.tap or runs[0].taps[-1]
    found: list[Any] = []
    if options.tap or options.umap:
        found.append(project(runs, tap, "pca"))
    if options.umap:
        found.append(project(runs, tap, "umap"))
    if options.clusters:
        found.append(cluster(runs[0], tap, k=options.clusters))
    found += _probes(runs, tap, options)
    if len(runs) > 1:
        found.append(compare(runs[0], runs[1], floor=options.floor))
    return found


def _probes(runs: Sequence[Run], tap: str, options: argparse.Namespace) -> list[Any]:
    """Fit the probes, and read them on the second run."""
    from workbench.analysis import fit_probe, sweep_probe, transfer, transfer_sweep
    from workbench.store import open_run

    repeat = None if options.repeat is None else open_run(options.repeat)
    found: list[Any] = []
    for column in options.probe:
        if options.all_taps:
            sweep = sweep_probe(runs[0], column)
            found.append(sweep)
            for away in runs[1:]:
                found += transfer_sweep(sweep, runs[0], away, other_engine=True, repeat=repeat)
        else:
            probe = fit_probe(runs[0], tap, column)
            found.append(probe)
            found += [transfer(probe, runs[0], away, other_engine=True, repeat=repeat) for away in runs[1:]]
    return found
