"""SmolLM2-135M on a GPU through TensorRT: error against float32 states, extraction end to end, memory, by precision.

    python benchmarks/bench_tensorrt_smollm2.py --model CHECKPOINT --work FOLDER [--only bf16] [--build]

Real weights, so error means something here. `--build` builds the engines and stops; a later run finds them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.common import RESULTS, machine, versions

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "smollm2_hidden.npz"
TOKENS_PER_PASS = 32768
KEPT = ("*.down", "blocks.28.*", "blocks.29.*")
BASELINE = "bf16 with cache and one token"
ENGINES = {
    BASELINE: ("bf16", (), "none"),
    "fp32": ("fp32", (), "none"),
    "fp16": ("fp16", (), "none"),
    "fp16 kernels": ("fp16", (), "all"),
    "bf16": ("bf16", (), "none"),
    "bf16 kernels": ("bf16", (), "all"),
    "fp8": ("fp8", (), "none"),
    "fp8 kept": ("fp8", KEPT, "none"),
    "fp8 kept kernels": ("fp8", KEPT, "all"),
    "int8 kept": ("int8", KEPT, "none"),
}


def recipe_of(name, checkpoint):
    import workbench as wb

    precision, keep, kernels = ENGINES[name]
    options = {"tokens_per_pass": TOKENS_PER_PASS, "kernels": kernels}
    if name == BASELINE:
        options["cache"] = True
    positions = "last" if name == BASELINE else "all"
    return wb.Recipe(
        checkpoint=checkpoint, precision=precision, keep=keep, positions=positions, backend="tensorrt", options=options
    )


def golden():
    with np.load(GOLDEN) as arrays:
        lengths = arrays["lengths"].astype(np.int64)
        ids = [row[:n] for row, n in zip(arrays["input_ids"], lengths, strict=True)]
        rows = np.concatenate([row[:n] for row, n in zip(arrays["final_norm"], lengths, strict=True)])
    return ids, rows


def error_of(engine):
    from workbench.engine.verification import relative_errors

    ids, rows = golden()
    if engine.contract.positions == "last":
        rows = rows[np.cumsum([len(prompt) for prompt in ids]) - 1]
    errors = relative_errors(engine.run(ids)["final_norm"], rows)
    return {"mean": float(errors.mean()), "worst": float(errors.max()), "worst_token": int(errors.argmax())}


def texts(n):
    return [f"City number {i} lies {i * 7 % 90} degrees north." + " It is said to be old." * (i % 9) for i in range(n)]


def apart(ours, theirs):
    """Relative error of every row of one run against another's, a piece at a time."""
    import workbench as wb
    from workbench.engine.verification import relative_errors

    a, b = (wb.open_run(folder).tap("final_norm") for folder in (ours, theirs))
    step = 65536
    errors = np.concatenate([relative_errors(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step)])
    return {"rows": len(errors), "mean": float(errors.mean()), "worst": float(errors.max())}


def extraction(engine, folder, n):
    """Seconds from texts to a sealed run folder, all tokens of all prompts."""
    import workbench as wb

    shutil.rmtree(folder, ignore_errors=True)
    prompts = wb.load_prompts(texts(n))
    start = time.perf_counter()
    dtype = {"fp32": "float32", "fp16": "float16"}.get(engine.contract.precision.name, "bfloat16")
    run = wb.extract(prompts, engine, out=folder, dtype=dtype, progress=False)
    seconds = time.perf_counter() - start
    tokens = int(run.offsets[-1])
    checked = wb.open_run(folder, scrub=1.0)
    assert checked.n_rows == (n if engine.contract.positions == "last" else tokens)
    return {
        "prompts": n,
        "tokens": tokens,
        "rows": run.n_rows,
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds),
        "read_back_whole": True,
    }


def main():
    import workbench as wb

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="checkpoint of SmolLM2-135M")
    parser.add_argument("--work", type=Path, required=True, help="folder for engines and runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "tensorrt_smollm2_gpu.json")
    parser.add_argument("--only", action="append", choices=list(ENGINES))
    parser.add_argument("--prompts", type=int, default=20000)
    parser.add_argument("--build", action="store_true", help="build the engines and stop")
    a = parser.parse_args()
    from workbench.engine.tensorrt.api import load_api
    from workbench.engine.tensorrt.card import read_card
    from workbench.engine.tensorrt.driver import load_driver

    checkpoint = wb.open_checkpoint(a.model)
    figures = {}

    def run_of(name):
        return a.work / f"run {name}"

    for name in a.only or ENGINES:
        try:
            start = time.perf_counter()
            engine = wb.build(recipe_of(name, checkpoint), a.work / "engines")
            print(name, "ready after", round(time.perf_counter() - start, 1), flush=True)
            if a.build:
                continue
            contract = engine.contract
            figures[name] = {
                "error_against_float32": error_of(engine),
                "kept_layers": len(contract.precision.kept_layers),
                "build_seconds": round(contract.build.seconds, 1),
                "plan_bytes": contract.build.plan_bytes,
                "card_bytes": contract.backend.card["need_bytes"],
                "engine_tokens_per_second": round(contract.build.tokens_per_second),
                "extraction": extraction(engine, run_of(name), a.prompts),
            }
            if contract.cache is not None:
                figures[name]["cache_bytes_of_largest_pass"] = int(contract.cache.bytes_per_token * TOKENS_PER_PASS)
            elif run_of("fp32").is_dir() and name != "fp32":
                figures[name]["stored rows against those of fp32"] = apart(run_of(name), run_of("fp32"))
            print("==", name, json.dumps(figures[name]), flush=True)
            engine._session.close()
        except Exception as error:  # noqa: BLE001 - an engine that fails is a result
            figures[name] = f"{type(error).__name__}: {error}"[:500]
            print("==", name, figures[name], flush=True)
    if a.build:
        return
    result = {
        "command": "python benchmarks/bench_tensorrt_smollm2.py --model CHECKPOINT --work FOLDER"
        + "".join(f" --only '{name}'" for name in a.only or ()),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine() | {"gpu": read_card(load_driver()).to_json()},
        "versions": versions("numpy", "onnx", "onnxruntime") | {"tensorrt": load_api().version},
        "checkpoint": {"name": checkpoint.name, "digest": checkpoint.digest},
        "tokens_per_pass": TOKENS_PER_PASS,
        "figures": figures,
    }
    a.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
