"""Check the tap in a real source tree of TensorRT-LLM.

    python -m workbench.engine.trtllm.check SOURCE_TREE --backend rtx     on any CPU: trace with and without the tap
    python -m workbench.engine.trtllm.check SOURCE_TREE --backend trt     on a GPU: build, run and compare both

The tree is copied, never written to; `trtllm-build` itself runs, with plain TensorRT and without TensorRT-LLM's
compiled parts. Needs torch, transformers and the usual packages of TensorRT-LLM, and for `rtx` the package
`tensorrt-rtx-cu13==1.4.*`, in the environment of this Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workbench.engine.trtllm.check.tracing import SEEN_FILE
from workbench.engine.trtllm.finder import TAP_OUTPUT
from workbench.engine.trtllm.patching import apply_patch, reverse_patch
from workbench.errors import EngineError

Verdicts = list[tuple[str, bool, str]]
BUILD_SECONDS = 540
DTYPES = {"float16": "HALF", "bfloat16": "BF16", "float32": "FLOAT"}


def main() -> int:
    """Run the check; exit status 0 if everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source_tree", type=Path)
    parser.add_argument("--backend", choices=("rtx", "trt"), required=True)
    parser.add_argument("--libraries", type=Path, help="folder of TensorRT's shared libraries")
    parser.add_argument("--checkpoint", type=Path, help="in TensorRT-LLM's layout; default: a small random one")
    parser.add_argument("--reference", type=Path, help="default: reference.npz of the checkpoint")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float16", help="of the random checkpoint")
    parser.add_argument("--structural", action="store_true", help="also a version that no patch lists")
    parser.add_argument("--work", type=Path, help="keep copies, logs and engines here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        verdicts = check_tree(given, work)
    for what, holds, detail in verdicts:
        sys.stdout.write(f"{'holds' if holds else 'FAILS'}  {what}: {detail}\n")
    return int(not all(holds for _, holds, _ in verdicts))


def check_tree(given: argparse.Namespace, work: Path) -> Verdicts:
    """Copy the tree twice, patch one copy, build from both and compare."""
    checkpoint = given.checkpoint
    if checkpoint is None:
        from workbench.engine.trtllm.check.toy import write_toy

        checkpoint = write_toy(work / "checkpoint", dtype=given.dtype)
    trees = {name: copy_tree(given.source_tree, work / f"tree-{name}") for name in ("plain", "patched")}
    states = (
        reverse_patch(trees["plain"], structural=given.structural),
        apply_patch(trees["patched"], structural=given.structural),
    )
    verdicts: Verdicts = [
        (f"the {name} copy", state.state == name, str(state)) for name, state in zip(trees, states, strict=True)
    ]
    seen = {name: build(name, tree, checkpoint, given, work) for name, tree in trees.items()}
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    verdicts += compare_networks(seen["plain"], seen["patched"], config)
    if given.backend == "trt":
        from workbench.engine.trtllm.check.running import compare_on_card

        reference = given.reference or checkpoint / "reference.npz"
        verdicts += compare_on_card(work / "plain", work / "patched", reference, given.libraries)
    (work / "result.json").write_text(json.dumps({"verdicts": verdicts, "seen": seen}, indent=1), "utf-8")
    return verdicts


def copy_tree(source: Path, target: Path) -> Path:
    """Copy the Python package alone."""
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.a", "libs")
    shutil.copytree(source / "tensorrt_llm", target / "tensorrt_llm", ignore=ignored)
    return target


def build(name: str, tree: Path, checkpoint: Path, given: argparse.Namespace, work: Path) -> dict[str, Any]:
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
    here = str(Path(__file__).parents[4])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    (work / f"{name}.log").write_text(done.stdout + done.stderr, "utf-8")
    if done.returncode:
        last = (done.stdout + done.stderr)[-2000:]
        raise EngineError(f"the build from the {name} tree must end well", last, "See the whole log with --work.")
    seen: dict[str, Any] = json.loads((work / name / SEEN_FILE).read_text("utf-8"))
    return seen


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
    layers = f"{plain['layers']} and {patched['layers']}"
    return [
        ("the network gains the tap and nothing else", kept and extra == [want], f"gained {extra}"),
        ("inputs are the same", plain["inputs"] == patched["inputs"], str([row["name"] for row in plain["inputs"]])),
        ("layers are the same", plain["kinds"] == patched["kinds"], layers),
        ("no plugin is in it", patched["plugin_layers"] == 0, f"TensorRT-LLM {patched['version']}"),
        ("packed and padded commands parse", len(patched["commands_parsed"]) == 2, patched["commands_parsed"][0]),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
