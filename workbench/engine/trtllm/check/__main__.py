"""Check the tap in a real source tree of TensorRT-LLM.

    python -m workbench.engine.trtllm.check SOURCE_TREE --backend rtx     on any CPU: trace, compute and compare both
    python -m workbench.engine.trtllm.check SOURCE_TREE --backend trt     on a GPU: build, run and compare both
    ... --model CHECKPOINT --dtype bfloat16      with real weights, against the workbench's own engines of them

The last line is the whole result as JSON. The tree is copied, never written to; `trtllm-build` itself runs, with plain
TensorRT and without TensorRT-LLM's compiled parts. Needs torch, transformers and the usual packages of TensorRT-LLM,
and for `rtx` the package `tensorrt-rtx-cu13==1.4.*`, in the environment of this Python. There nothing can be built for
a card, so the outputs are computed from the networks, in float16 or float32; bfloat16 is only traced.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.trtllm.check.judging import judge_states, rows_of
from workbench.engine.trtllm.check.own import MAX_TOKENS, PRECISIONS
from workbench.engine.trtllm.check.tracing import N_LAYERS_ASKED, OUTPUTS_FILE, SEEN_FILE, VARIANTS
from workbench.engine.trtllm.finder import TAP_OUTPUT
from workbench.engine.trtllm.input_table import inputs_for
from workbench.engine.trtllm.inputs import N_PERF_KNOBS
from workbench.engine.trtllm.patching import apply_patch, inspect_tree, reverse_patch
from workbench.errors import EngineError, WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Verdicts = list[tuple[str, bool, str]]
BUILD_SECONDS = 540
DTYPES = {"float16": "HALF", "bfloat16": "BF16", "float32": "FLOAT"}


def main() -> int:
    """Run the check; exit status 0 if everything holds, 1 if not, 2 if it could not be checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source_tree", type=Path)
    parser.add_argument("--backend", choices=("rtx", "trt"), required=True)
    parser.add_argument("--libraries", type=Path, help="folder of TensorRT's shared libraries")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", help="checkpoint that the workbench reads; default: a small random one")
    what.add_argument("--checkpoint", type=Path, help="one in TensorRT-LLM's layout")
    parser.add_argument("--reference", type=Path, help="prompts and rows; default: made, or that of the checkpoint")
    parser.add_argument("--own", action="append", default=[], help="backend of an own engine to compare with --model")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float16", help="of --model or the random one")
    parser.add_argument("--structural", action="store_true", help="also a version that no patch lists")
    parser.add_argument("--work", type=Path, help="keep copies, logs and engines here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        try:
            result = check_tree(given, work)
        except WorkbenchError as error:
            sys.stderr.write(f"{error}\n")
            return 2
    for what_held, holds, detail in result["verdicts"]:
        sys.stdout.write(f"{'holds' if holds else 'FAILS'}  {what_held}: {detail}\n")
    short = {name: value for name, value in result.items() if name != "verdicts"}
    sys.stdout.write(f"RESULT {json.dumps(short)}\n")
    return int(not result["holds"])


def check_tree(given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Copy the tree twice, patch one copy, build from both and compare."""
    began = time.monotonic()
    inspect_tree(given.source_tree)  # refuses what is no tree
    checkpoint, reference = prepare(given, work)
    if reference and not reference.is_file():
        raise EngineError("the prompts and rows to compare with must be there", str(reference), "Name --reference.")
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    verdicts, own = own_rows(given, work, config["dtype"], reference)
    reference = reference or work / "own-onnxruntime.npz"
    trees = {name: copy_tree(given.source_tree, work / f"tree-{name}") for name in ("plain", "patched")}
    states = (
        reverse_patch(trees["plain"], structural=given.structural),
        apply_patch(trees["patched"], structural=given.structural),
    )
    verdicts += [
        (f"the {name} copy", state.state == name, str(state)) for name, state in zip(trees, states, strict=True)
    ]
    seen = {name: build(name, tree, checkpoint, reference, given, work) for name, tree in trees.items()}
    verdicts += compare_networks(seen["plain"], seen["patched"], config)
    figures: dict[str, Any] = {"computed": False}
    if is_computed(given.backend, config["dtype"]):
        found, outputs = run_both(given, work, reference)
        more, figures = judge_states(outputs[TAP_OUTPUT], rows_of(reference), own, config["dtype"])
        verdicts += found + more
    result = {
        "holds": all(holds for _, holds, _ in verdicts),
        "version": seen["patched"]["version"],
        "blob": states[1].blob,
        "backend": given.backend,
        "model": Path(given.model or given.checkpoint or "small random decoder").name,
        "dtype": config["dtype"],
        **figures,
        "build_s": {name: part.get("build_s") for name, part in seen.items()},
        "seconds": round(time.monotonic() - began, 1),
        "verdicts": verdicts,
    }
    (work / "result.json").write_text(json.dumps(result | {"seen": seen}, indent=1), "utf-8")
    return result


def is_computed(backend: str, dtype: str) -> bool:
    """Whether outputs can be had: the bindings do not show the bfloat16 weights of a network that is only traced."""
    return backend == "trt" or dtype != "bfloat16"


def prepare(given: argparse.Namespace, work: Path) -> tuple[Path, Path | None]:
    """Give the checkpoint in TensorRT-LLM's layout, and the reference where it need not be made."""
    if given.checkpoint:
        return given.checkpoint, given.reference or given.checkpoint / "reference.npz"
    if not given.model:
        from workbench.engine.trtllm.check.toy import write_toy

        checkpoint = write_toy(work / "checkpoint", dtype=given.dtype)
        return checkpoint, given.reference or checkpoint / "reference.npz"
    from workbench.checkpoint import open_checkpoint
    from workbench.engine.trtllm.export import export_checkpoint

    opened = open_checkpoint(given.model)
    folder = work / "checkpoint"
    export_checkpoint(opened.config, opened.weights, folder, dtype=given.dtype, max_positions=MAX_TOKENS)
    return folder, given.reference


def own_rows(
    given: argparse.Namespace, work: Path, dtype: str, reference: Path | None
) -> tuple[Verdicts, dict[str, NDArray[Any]]]:
    """Run the workbench's own engines of `--model`, each in a process of its own."""
    if not given.model or (reference and not is_computed(given.backend, dtype)):
        return [], {}
    verdicts: Verdicts = []
    rows: dict[str, NDArray[Any]] = {}
    for backend in dict.fromkeys(["onnxruntime", *given.own]):
        out = work / f"own-{backend}.npz"
        precision = PRECISIONS[dtype] if backend == "tensorrt" else "fp32"
        command = [sys.executable, "-m", "workbench.engine.trtllm.check.own", given.model, str(out)]
        command += ["--backend", backend, "--precision", precision]
        command += ["--prompts", str(reference)] if reference else []
        try:
            run_child(command, work / f"own-{backend}.log", f"our engine on {backend}")
        except EngineError as error:
            if reference is None:
                raise
            verdicts.append((f"our engine on {backend} runs", False, error.got))
            continue
        with np.load(out) as data:
            rows[str(data["engine"])] = rows_of(out)
    return verdicts, rows


def run_both(given: argparse.Namespace, work: Path, reference: Path) -> tuple[Verdicts, Mapping[str, NDArray[Any]]]:
    """Give what both engines show: on the card, or computed from both networks."""
    if given.backend == "trt":
        from workbench.engine.trtllm.check.running import run_on_card

        return run_on_card(work / "plain", work / "patched", reference, given.libraries)
    outputs = {name: dict(np.load(work / name / OUTPUTS_FILE)) for name in ("plain", "patched")}
    equal = outputs["plain"]["logits"].tobytes() == outputs["patched"]["logits"].tobytes()
    found = f"{len(outputs['plain']['logits'])} prompts, computed from the networks"
    return [("logits with and without the tap are bit-equal", equal, found)], outputs["patched"]


def copy_tree(source: Path, target: Path) -> Path:
    """Copy the Python package alone."""
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.a", "libs")
    shutil.copytree(source / "tensorrt_llm", target / "tensorrt_llm", ignore=ignored)
    return target


def build(
    name: str, tree: Path, checkpoint: Path, reference: Path, given: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """Build in a process of its own and return what was seen.

    Raises
    ------
    EngineError
        If the build fails; the end of its log is quoted.
    """
    command = [sys.executable, "-m", "workbench.engine.trtllm.check.tracing", "--backend", given.backend]
    command += ["--tree", str(tree), "--checkpoint", str(checkpoint.resolve()), "--out", str((work / name).resolve())]
    if given.libraries:
        command += ["--libraries", str(given.libraries)]
    cache = work / "plain" / "timing.cache"
    if name == "patched" and cache.is_file():
        command += ["--input-timing-cache", str(cache.resolve())]
    dtype = json.loads((checkpoint / "config.json").read_text("utf-8"))["dtype"]
    if given.backend == "rtx" and is_computed(given.backend, dtype):
        command += ["--prompts-file", str(reference.resolve())]
    run_child(command, work / f"{name}.log", f"the build from the {name} tree")
    seen: dict[str, Any] = json.loads((work / name / SEEN_FILE).read_text("utf-8"))
    return seen


def run_child(command: list[str], log: Path, what: str) -> None:
    """Run a command with this package importable, its output in `log`.

    Raises
    ------
    EngineError
        If it fails; the end of its log is quoted.
    """
    here = str(Path(__file__).parents[4])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            check=False,
        )
    if done.returncode:
        raise EngineError(f"{what} must end well", log.read_text("utf-8")[-2000:], "See the whole log with --work.")


def compare_networks(plain: dict[str, Any], patched: dict[str, Any], config: dict[str, Any]) -> Verdicts:
    """Compare the two networks that `trtllm-build` handed to the builder.

    Parameters
    ----------
    plain, patched : dict
        What was seen in each.
    config : dict
        Of the checkpoint.

    Returns
    -------
    list of (str, bool, str)
        What was checked, whether it holds, and figures.
    """
    extra = [row for row in patched["outputs"] if row not in plain["outputs"]]
    kept = [row for row in patched["outputs"] if row in plain["outputs"]] == plain["outputs"]
    want = {"name": TAP_OUTPUT, "dtype": DTYPES[config["dtype"]], "shape": [-1, -1, config["hidden_size"]]}
    parsed = patched["commands_parsed"]
    layers = f"{plain['layers']} and {patched['layers']}"
    return [
        ("the network gains the tap and nothing else", kept and extra == [want], f"gained {extra}"),
        ("inputs are the same", plain["inputs"] == patched["inputs"], str([row["name"] for row in plain["inputs"]])),
        ("layers are the same", plain["kinds"] == patched["kinds"], layers),
        ("no plugin is in it", patched["plugin_layers"] == 0, f"TensorRT-LLM {patched['version']}"),
        *compare_inputs(patched["inputs_asked"], patched["version"]),
        ("every variant of the command parses", len(parsed) == len(VARIANTS), f"{len(parsed)} commands"),
    ]


def compare_inputs(asked: Mapping[str, list[dict[str, Any]]], version: str) -> Verdicts:
    """Hold the table of inputs against those that upstream declares, layout by layout."""
    sizes = {"layer": N_LAYERS_ASKED, "one": 1, "knob": N_PERF_KNOBS}
    verdicts: Verdicts = []
    for layout, rows in asked.items():
        want = {s.name: [s.dtype, *(sizes.get(axis, -1) for axis in s.axes)] for s in inputs_for(layout, version)}
        found = {row["name"]: [row["dtype"].lower(), *row["shape"]] for row in rows}
        unlike = sorted(name for name in want.keys() | found.keys() if want.get(name) != found.get(name))
        told = f"{len(found)} inputs" if not unlike else f"differing: {', '.join(unlike)}"
        verdicts.append((f"our table has the inputs of layout {layout}", not unlike, told))
    return verdicts


if __name__ == "__main__":
    raise SystemExit(main())
