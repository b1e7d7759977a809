"""TensorRT engines on a GPU: speed, memory and builds at 7B shape, side by side with what a user would otherwise run.

    python benchmarks/bench_tensorrt.py --work FOLDER [--stages ceiling,model,...] [--layers 32] [--batch 256]

The weights are random (Mistral-7B dimensions), so speed means something here and error only says that engine and
transformers compute the same. Every ratio comes from one process run. Figures are kept after each stage.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import re
import shutil
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.common import RESULTS, machine, versions

D, HEADS, KV, HEAD, FF, VOCAB, EPS, THETA, TOKENS = 4096, 32, 8, 128, 14336, 32000, 1e-5, 1e4, 128
SECONDS = 5.0
DEVICE = "cuda"
FIGURES: dict[str, object] = {}


def config_of(n_layers):
    from workbench.checkpoint.config import DecoderConfig, Layer, Rope

    inv_freq = tuple(float(f) for f in 1.0 / THETA ** (np.arange(0, HEAD, 2) / HEAD))
    layer = Layer(rope=Rope(dims=HEAD, inv_freq=inv_freq), attn_scale=HEAD**-0.5)
    return DecoderConfig(
        family="mistral",
        n_layers=n_layers,
        d_model=D,
        n_heads=HEADS,
        n_kv_heads=KV,
        head_dim=HEAD,
        d_ff=FF,
        d_vocab=VOCAB,
        max_positions=32768,
        layers=(layer,) * n_layers,
        norm_eps=EPS,
        activation="silu",
    )


def flops_per_token(n_layers):
    """Two a parameter outside the embedding."""
    return 2 * n_layers * (D * D * 2 + D * KV * HEAD * 2 + 3 * D * FF)


class Shapes:
    """Shapes of canonical weights, for the graph; the values come from the model on the card."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __contains__(self, name):
        return name in self.tensors

    def __getitem__(self, name):
        return self.tensors[name].float().cpu().numpy()

    def shape(self, name):
        return tuple(self.tensors[name].shape)


PARTS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
PARTS |= {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
PARTS |= {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


def make_model(n_layers):
    """A random Mistral in bf16 on the card."""
    import torch
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        intermediate_size=FF,
        num_hidden_layers=n_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        head_dim=HEAD,
        rms_norm_eps=EPS,
        sliding_window=None,
        use_cache=False,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = MistralModel(config).eval()
    torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
    return model


def canonical(model):
    tensors = {"embed.weight": model.embed_tokens.weight, "final_norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        for name, path in PARTS.items():
            tensors[f"blocks.{i}.{name}.weight"] = layer.get_submodule(path).weight
    return {name: tensor.detach() for name, tensor in tensors.items()}


def ranges_of(model, n_layers):
    """Calibrate on the card: the largest input of each product over a batch of random ids."""
    import torch

    found, hooks = {}, []
    for i, layer in enumerate(model.layers[:n_layers]):
        for name in ("q", "k", "v", "o", "gate", "up", "down"):

            def hook(_module, inputs, key=f"blocks.{i}.{name}"):
                found[key] = max(found.get(key, 0.0), float(inputs[0].abs().max()))

            hooks.append(layer.get_submodule(PARTS[name]).register_forward_pre_hook(hook))
    with torch.inference_mode():
        for seed in range(2):
            model(input_ids=ids_of(16, seed), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def ids_of(batch, seed=0, tokens=TOKENS):
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, tokens), generator=generator).to(DEVICE)


def from_card(graph, tensors):
    """Weights of a graph straight from the card, in the graph's layout and dtype."""
    import torch

    types = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float8_e4m3fn": torch.float8_e4m3fn}
    types["float32"] = torch.float32

    from workbench.graph.narrow import PACKED

    def maker(name, lazy):
        def make():
            prefix, _, module = name.removesuffix(".weight").rpartition(".")
            if module in PACKED:
                source = torch.cat([tensors[f"{prefix}.{part}.weight"] for part in PACKED[module]])
            else:
                source = tensors[name]
            array = source.T if tuple(source.shape) != lazy.shape else source
            if tuple(source.shape) == lazy.shape and name not in ("embed.weight", "head.weight") and source.ndim == 2:
                array = source.T  # square matrices: the graph holds [in, out]
            if str(lazy.dtype) == "float8_e4m3fn":
                step = float(np.float32(graph.initialisers[f"{name}.step"].load()))
                array = (array.float() / step).clamp(-448, 448)
            array = array.to(types[str(lazy.dtype)]).contiguous()
            width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[lazy.dtype.itemsize]
            return array.view(width).cpu().numpy().view(lazy.dtype)

        return make

    lazies = {
        name: lazy if name.endswith(".step") else dataclasses.replace(lazy, make=maker(name, lazy))
        for name, lazy in graph.initialisers.items()
    }
    return dataclasses.replace(graph, initialisers=lazies)


def graph_of(tensors, n_layers, precision, *, ranges, positions="all", taps=("final_norm",), keep=(), **options):
    from workbench.engine.backends.tensorrt import joined
    from workbench.engine.tensorrt.driver import load_driver
    from workbench.graph import build_graph
    from workbench.graph.narrow import PACKED, narrow

    lowering = options.pop("lowering", "packed")
    config, shapes = config_of(n_layers), Shapes(tensors)
    graph = build_graph(config, shapes, taps=taps, positions=positions, lowering=lowering, max_tokens=TOKENS)
    largest = {}
    names = [name.removesuffix(".weight") for name in graph.initialisers if name.endswith(".weight")]
    packed = [name for name in names if name.rpartition(".")[2] in PACKED]
    for module in (*graph.policy, *packed):
        prefix, _, last = module.rpartition(".")
        parts = [f"{prefix}.{part}" for part in PACKED[last]] if last in PACKED else [module]
        largest[module] = max(float(tensors[f"{part}.weight"].abs().max()) for part in parts)
    graph = from_card(narrow(graph, precision, ranges=ranges, weight_ranges=largest, keep=keep), tensors)
    return joined(graph, load_driver().compute_capability())


# Building -------------------------------------------------------------------------------------------------------------


def status(field):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", text)[1]) << 10


class Peak:
    """Largest anonymous memory of this process, and largest use of the card, while a block runs."""

    def __enter__(self):
        self.start, self.most, self.card, self.stop = status("RssAnon"), 0, 0, False
        self.whole_start, self.whole = status("VmRSS"), 0
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        import torch

        while not self.stop:
            self.most = max(self.most, status("RssAnon"))
            self.whole = max(self.whole, status("VmRSS"))
            free, total = torch.cuda.mem_get_info()
            self.card = max(self.card, total - free)
            time.sleep(0.05)

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()


def build(graph, work, name, *, batch, level=3, wide=4, resident=()):
    """Build a plan, and give a session with its figures."""
    import onnx

    from workbench.canonical import canonical_json
    from workbench.engine.backends import tensorrt as backend
    from workbench.engine.plan_files import MODEL_FILE, map_weights, write_plan
    from workbench.engine.tensorrt.api import load_api
    from workbench.engine.tensorrt.builder import build_engine, describe_layers
    from workbench.engine.tensorrt.limits import limits_of, profiles
    from workbench.graph.artefact import WEIGHTS_FILE

    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    backend.fuse(folder, graph)
    limits = limits_of(TOKENS, {"tokens_per_pass": batch * TOKENS, "prompts_per_pass": batch * wide})
    gc.collect()
    start = time.perf_counter()
    with Peak() as peak:
        write_plan(graph, folder)
        written = time.perf_counter() - start
        weights = (folder / WEIGHTS_FILE).stat().st_size
        proto = onnx.load_model_from_string((folder / MODEL_FILE).read_bytes())
        api = load_api()
        built = build_engine(
            api,
            folder / MODEL_FILE,
            map_weights(proto, folder / WEIGHTS_FILE),
            profiles(limits, graph.positions),
            level=level,
        )
        seconds = time.perf_counter() - start
        backend.keep(folder, built, None)
        del built
    (folder / WEIGHTS_FILE).unlink()
    shape = {"limits": limits.to_json(), "cuda_graph": False, "resident": list(resident)}
    (folder / backend.SHAPE_FILE).write_bytes(canonical_json(shape))
    session = backend.load(folder)
    layers = describe_layers(api, session.engine)
    (work / f"{name}.layers.json").write_text(json.dumps(layers))
    figures = {
        "seconds": round(seconds, 1),
        "writing_seconds": round(written, 1),
        "weight_bytes": weights,
        "plan_bytes": (folder / backend.PLAN_FILE).stat().st_size,
        "host_bytes_over_start": peak.most - peak.start,
        "host_bytes_with_mapped_pages_over_start": peak.whole - peak.whole_start,
        "card_bytes_at_most": peak.card,
        "scratch_bytes": session.scratch_bytes,
        "buffer_bytes": session.buffer_bytes,
        "layers": len(layers),
    }
    (folder / backend.PLAN_FILE).unlink()
    print(name, figures, flush=True)
    return session, figures


def feeds_of(batch, positions, tokens=TOKENS, seed=0):
    from workbench.engine.batch import make_feeds

    ids = np.random.default_rng(seed).integers(0, VOCAB, (batch, tokens)).astype(np.int32)
    return make_feeds(list(ids), positions, "int32")


# Timing ---------------------------------------------------------------------------------------------------------------


def sustained(call, finish, seconds=SECONDS):
    """Seconds a call, over at least `seconds` of calls; `call` waits for the one before it, `finish` for all."""
    call()
    finish()
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        n += 1
    finish()
    return (time.perf_counter() - start) / n


def time_session(session, feeds, seconds=SECONDS):
    """Seconds a pass with two passes in flight and every row delivered to the host."""
    flight = []

    def call():
        flight.append(session.submit(feeds))
        if len(flight) == 2:
            flight.pop(0).result(copy=False)

    def finish():
        while flight:
            flight.pop(0).result(copy=False)

    return sustained(call, finish, seconds)


def time_torch(call, seconds=SECONDS):
    import torch

    with torch.inference_mode():
        for _ in range(2):
            call()

        def waited():
            call()
            torch.cuda.synchronize()

        return sustained(waited, torch.cuda.synchronize, seconds)


def ceiling(batch, quick=False):
    """Bare products of a layer's shapes, sustained: TFLOP/s by dtype."""
    import torch

    m = batch * TOKENS
    shapes = [(D, D + 2 * KV * HEAD), (D, D), (D, 2 * FF), (FF, D)]
    flops = sum(2 * m * k * n for k, n in shapes)
    one = torch.ones((), device=DEVICE)

    def pairs(dtype):
        return [
            (torch.randn(m, k, device=DEVICE).to(dtype), torch.randn(n, k, device=DEVICE).to(dtype)) for k, n in shapes
        ]

    def measure(product, dtype):
        operands = pairs(dtype)
        return round(flops / time_torch(lambda: [product(a, b) for a, b in operands]) / 1e12, 1)

    def scaled(fast):
        return lambda a, b: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    found = {"bfloat16": measure(lambda a, b: a @ b.T, torch.bfloat16)}
    found["float8"] = measure(scaled(True), torch.float8_e4m3fn)
    if not quick:
        found["float16"] = measure(lambda a, b: a @ b.T, torch.float16)
        found["float8 exact accumulation"] = measure(scaled(False), torch.float8_e4m3fn)
    torch.cuda.empty_cache()
    return found


def speed_of(seconds, batch, n_layers, tokens=TOKENS):
    rate = batch * tokens / seconds
    return {"tokens_per_second": round(rate), "tflops": round(rate * flops_per_token(n_layers) / 1e12, 1)}


def relative(rows, reference):
    rows, reference = (np.asarray(x, dtype=np.float32) for x in (rows, reference))
    error = np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)
    return {"mean": float(error.mean()), "worst": float(error.max())}


# Stages ---------------------------------------------------------------------------------------------------------------


def keep(name, value):
    FIGURES[name] = value
    print(f"== {name}: {json.dumps(value)[:1500]}", flush=True)


def stage_ceiling(a, _):
    keep("ceiling_tflops", ceiling(a.batch, a.quick))


def stage_model(a, state):
    state["model"] = make_model(a.layers)
    state["tensors"] = canonical(state["model"])
    state["ranges"] = ranges_of(state["model"], a.layers)


def stage_transformers(a, state):
    import torch

    model, ids = state["model"], ids_of(a.batch)

    def states():
        return model(input_ids=ids, use_cache=False).last_hidden_state

    plain = time_torch(states)
    host = time_torch(lambda: states().cpu())
    array = time_torch(lambda: states().cpu().float().numpy())
    with torch.inference_mode():
        few = torch.from_numpy(feeds_of(16, "all")["input_ids"]).long().to(DEVICE)
        state["reference"] = (
            model(input_ids=few, use_cache=False).last_hidden_state.float().cpu().numpy().reshape(-1, D)
        )
    free, total = torch.cuda.mem_get_info()
    keep(
        "transformers bf16 sdpa",
        {
            "on card": speed_of(plain, a.batch, a.layers),
            "to host": speed_of(host, a.batch, a.layers),
            "to host as float32 numpy": speed_of(array, a.batch, a.layers),
            "card_bytes": total - free,
        },
    )


def stage_compile(a, state):
    import torch

    ids = ids_of(a.batch)
    start = time.perf_counter()
    compiled = torch.compile(state["model"], dynamic=False)

    def states():
        return compiled(input_ids=ids, use_cache=False).last_hidden_state

    with torch.inference_mode():
        states()
    seconds = time.perf_counter() - start
    speeds = {"on card": time_torch(states), "to host": time_torch(lambda: states().cpu())}
    value = {name: speed_of(each, a.batch, a.layers) for name, each in speeds.items()}
    keep("torch.compile bf16", value | {"compile_seconds": round(seconds, 1)})
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def stage_engine(a, state, name):
    precision, _, fused = name.partition("-")
    lowering = fused or a.lowering
    graph = graph_of(state["tensors"], a.layers, precision, ranges=state["ranges"], lowering=lowering)
    session, figures = build(graph, a.work, name, batch=a.batch)
    speeds = {}
    for batch in (16, 64, a.batch):
        if batch <= a.batch:
            seconds = time_session(session, feeds_of(batch, "all"), SECONDS if batch == a.batch else 2.0)
            speeds[str(batch)] = speed_of(seconds, batch, a.layers)
    rows = session.run(feeds_of(16, "all"))["final_norm"]
    error = relative(rows, state["reference"]) if "reference" in state else None
    value = {"build": figures, "delivered": speeds, "error_against_transformers": error}
    if precision in ("fp8", "bf16"):
        value["mixed lengths"] = mixed(session, a, speeds[str(a.batch)]["tokens_per_second"])
    value["profile"] = profile_of(session, a.batch)
    session.close()
    keep(f"engine {name}", value)


def mixed(session, a, full):
    """Real tokens per second over prompts of a lognormal length distribution, cut into passes as extraction does."""
    from workbench.engine.batch import make_feeds
    from workbench.extraction import _PASSES_PER_WINDOW as WINDOW
    from workbench.runtime import BatchPlan, plan_batches

    random = np.random.default_rng(5)
    n = 96 * a.batch
    lengths = np.clip(np.exp(random.normal(3.4, 0.7, n)), 1, TOKENS).astype(np.int64)
    budget = a.batch * TOKENS
    plan = BatchPlan(
        tokens_per_pass=budget,
        prompts_per_pass=4 * a.batch,
        tokens_per_window=WINDOW * budget,
        rows_per_window=WINDOW * budget,
        least_tokens=budget // 8,
    )
    passes = [members for window in plan_batches(lengths, lengths, plan) for members in window.passes]
    feeds = [
        make_feeds([np.full(lengths[p], p % VOCAB, np.int32) for p in members], "all", "int32") for members in passes
    ]

    def run(chosen):
        flight = []
        for feed in chosen:
            flight.append(session.submit(feed))
            if len(flight) == 2:
                flight.pop(0).result(copy=False)
        for pending in flight:
            pending.result(copy=False)

    run(feeds[:: max(1, len(feeds) // 16)])
    start = time.perf_counter()
    run(feeds)
    rate = lengths.sum() / (time.perf_counter() - start)
    padded = sum(feed["input_ids"].size for feed in feeds)
    return {
        "tokens_per_second": round(float(rate)),
        "share_of_full_length": round(float(rate) / full, 3),
        "padding": round(1 - float(lengths.sum()) / padded, 4),
        "mean_length": round(float(lengths.mean()), 1),
        "passes": len(feeds),
    }


def stage_taps(a, state):
    """All residual taps at the last token against `final_norm` alone, FP8, few layers."""
    n = min(a.few, a.layers)
    every = (*(f"blocks.{i}.resid_post" for i in range(n)), "final_norm")
    times = {}
    sessions = {}
    for name, taps in (("final_norm", ("final_norm",)), ("all", every)):
        graph = graph_of(
            state["tensors"], n, "fp8", ranges=state["ranges"], positions="last", taps=taps, lowering=a.lowering
        )
        sessions[name], _ = build(graph, a.work, f"taps-{name}", batch=a.batch)
    rounds = {name: [] for name in sessions}
    for _ in range(5):
        for name, session in sessions.items():
            rounds[name].append(time_session(session, feeds_of(a.batch, "last"), 1.5))
    times = {name: statistics.median(values) for name, values in rounds.items()}
    for session in sessions.values():
        session.close()
    ratio = statistics.median(b / x for b, x in zip(rounds["all"], rounds["final_norm"], strict=True))
    keep(
        "all residual taps",
        {
            "milliseconds": {k: round(v * 1e3, 2) for k, v in times.items()},
            "slower_by": round(ratio - 1, 4),
            "taps": n + 1,
        },
    )


def stage_cache(a, state):
    """The baseline of the sequence: keys and values kept and one token made, bf16."""
    import torch

    from workbench.graph.baseline import build_baseline
    from workbench.graph.narrow import narrow

    tensors = state["tensors"] | {"head.weight": state["tensors"]["embed.weight"]}
    asked = {"taps": ("final_norm",), "max_tokens": TOKENS, "lowering": "packed"}
    plain, kept = build_baseline(config_of(a.layers), Shapes(tensors), **asked)
    graph = from_card(narrow(plain, "bf16"), tensors)
    session, figures = build(graph, a.work, "baseline", batch=a.batch, wide=1, resident=kept)
    torch.cuda.synchronize()
    seconds = time_on_card(session, feeds_of(a.batch, "last"))
    cache = 2 * a.layers * a.batch * KV * HEAD * TOKENS * 2
    session.close()
    keep(
        "engine bf16 with cache and one token",
        {"build": figures, "on card": speed_of(seconds, a.batch, a.layers), "cache_bytes": cache},
    )


def time_on_card(session, feeds, seconds=SECONDS):
    """Seconds a pass without any copy to the host: cache and token stay on the card."""
    driver = session._driver
    pending = session.submit(feeds)
    pending.result(copy=False)
    slot, shapes = pending.slot, {name: tuple(feeds[name].shape) for name in session.inputs}
    events = [driver.event(), driver.event()]
    for event in events:
        driver.record(event, session._compute)

    def call():
        session._launch(slot, shapes)
        events.reverse()
        driver.record(events[0], session._compute)
        driver.synchronise(events[1])

    def finish():
        driver.synchronise(events[0])

    return sustained(call, finish, seconds)


def states_of(state, n_layers, feeds):
    """States of the first layers of the model, before the final norm is applied to the rest."""
    import torch

    model = state["model"]
    whole, model.layers = model.layers, model.layers[:n_layers]
    count, model.config.num_hidden_layers = model.config.num_hidden_layers, n_layers
    try:
        with torch.inference_mode():
            ids = torch.from_numpy(feeds["input_ids"]).long().to(DEVICE)
            return model(input_ids=ids, use_cache=False).last_hidden_state.float().cpu().numpy().reshape(-1, D)
    finally:
        model.layers, model.config.num_hidden_layers = whole, count


def stage_variants(a, state):
    """Variants of the graph, few layers: what the time outside the products depends on."""
    n, found = min(a.few, a.layers), {}
    few = feeds_of(16, "all")
    reference = states_of(state, n, few)
    for variant in a.variants.split(","):
        precision, _, lowering = variant.partition(":")
        try:
            graph = graph_of(state["tensors"], n, precision, ranges=state["ranges"], lowering=lowering)
            session, figures = build(graph, a.work, f"variant-{precision}-{lowering}", batch=a.batch)
            seconds = time_on_card(session, feeds_of(a.batch, "all"), 3.0)
            value = speed_of(seconds, a.batch, n) | {"build": figures, "milliseconds": round(seconds * 1e3, 2)}
            value["error_against_transformers"] = relative(session.run(few)["final_norm"], reference)
            value["profile"] = profile_of(session, a.batch)
            session.close()
        except Exception as error:  # noqa: BLE001 - a variant that fails is a result
            traceback.print_exc()
            value = f"{type(error).__name__}: {error}"[:500]
        found[variant] = value
        gc.collect()
        keep(f"variants of {n} layers", found)


def profile_of(session, batch):
    """Share of time by kind of kernel, from the profiler of the engine."""
    api = session._api

    class Profiler(api.trt.IProfiler):
        def __init__(self):
            api.trt.IProfiler.__init__(self)
            self.times = {}

        def report_layer_time(self, name, ms):
            self.times[name] = self.times.get(name, 0.0) + ms

    profiler = Profiler()
    session._contexts[0].profiler = profiler
    for _ in range(4):
        session.run(feeds_of(batch, "all"))
    session._contexts[0].profiler = None
    total = sum(profiler.times.values())
    kinds = {}
    for name, ms in profiler.times.items():
        kind = re.sub(r"\d+", "#", name)[:100]
        kinds[kind] = kinds.get(kind, 0.0) + 100 * ms / total
    return {kind: round(share, 2) for kind, share in sorted(kinds.items(), key=lambda item: -item[1])[:24]}


def stage_kept(a, state):
    """What keeping the down projections in bf16 costs at this shape, FP8, few layers."""
    n, found = min(a.few, a.layers), {}
    sets = {"none": (), "every down": ("*.down",), "one block": ("blocks.1.*",)}
    for name, kept in sets.items():
        graph = graph_of(state["tensors"], n, "fp8", ranges=state["ranges"], keep=kept, lowering=a.lowering)
        session, _ = build(graph, a.work, "kept", batch=a.batch)
        found[name] = round(time_session(session, feeds_of(a.batch, "all"), 2.0) * 1e3, 2)
        session.close()
    keep(f"kept layers fp8 of {n} layers, milliseconds a pass", found)


def stage_memory(a, _):
    """Largest batch of each engine, from its memory at this batch: what grows with the batch, and what does not."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    found = {}
    for name in ("engine bf16 with cache and one token", "engine bf16", "engine fp8"):
        if name not in FIGURES:
            continue
        part = FIGURES[name]["build"]
        grows = part["scratch_bytes"] + part["buffer_bytes"] / 2  # one slot
        most = int((total - part["plan_bytes"]) // (grows / a.batch))
        found[name] = {"card_bytes_at_batch": part["plan_bytes"] + int(grows), "largest_batch_computed": most}
    keep("memory", found)


STAGES = (
    "ceiling",
    "model",
    "transformers",
    "fp8",
    "bf16",
    "fp16",
    "compile",
    "taps",
    "kept",
    "cache",
    "memory",
    "variants",
)


def ratios():
    """What the figures of one run say of each other."""
    parts = [
        FIGURES.get(name) for name in ("engine fp8", "engine bf16", "transformers bf16 sdpa", "torch.compile bf16")
    ]
    if not all(isinstance(part, dict) for part in parts):
        return {}
    fp8, bf16 = (part["delivered"][max(part["delivered"], key=int)] for part in parts[:2])
    eager, compiled = parts[2], parts[3]["to host"]
    ceiling, most = FIGURES["ceiling_tflops"], parts[1]["build"]["weight_bytes"]
    found = {"fp8 over bf16": fp8["tokens_per_second"] / bf16["tokens_per_second"]}
    for name, speed, kind, part in (("fp8", fp8, "float8", parts[0]), ("bf16", bf16, "bfloat16", parts[1])):
        found |= {
            f"{name} share of sustained ceiling": speed["tflops"] / ceiling[kind],
            f"{name} over transformers, states to host": speed["tokens_per_second"]
            / eager["to host"]["tokens_per_second"],
            f"{name} over transformers, states as numpy float32": speed["tokens_per_second"]
            / eager["to host as float32 numpy"]["tokens_per_second"],
            f"{name} over torch.compile, states to host": speed["tokens_per_second"] / compiled["tokens_per_second"],
            f"{name} mixed lengths, share of full length": part["mixed lengths"]["share_of_full_length"],
            f"{name} anonymous host memory of the build over bf16 weight bytes": part["build"]["host_bytes_over_start"]
            / most,
        }
    if isinstance(part := FIGURES.get("engine fp16"), dict):
        fp16 = part["delivered"][max(part["delivered"], key=int)]["tflops"]
        found["fp16 share of sustained bf16 ceiling"] = fp16 / ceiling["bfloat16"]
    if isinstance(part := FIGURES.get("all residual taps"), dict):
        found["all residual taps at the last token, slower by"] = part["slower_by"]
    return {name: round(value, 4) for name, value in found.items()}


def save(a):
    import torch

    from workbench.engine.tensorrt.card import read_card
    from workbench.engine.tensorrt.driver import load_driver

    result = {
        "command": "python benchmarks/bench_tensorrt.py --work FOLDER" + "".join(f" {x}" for x in a.said),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine() | {"gpu": read_card(load_driver()).to_json()},
        "versions": versions("numpy", "onnx", "torch", "transformers", "triton")
        | {"tensorrt": a.tensorrt, "cuda": torch.version.cuda},
        "shape": {
            "layers": a.layers,
            "batch": a.batch,
            "tokens": TOKENS,
            "parameters": flops_per_token(a.layers) // 2,
        },
        "figures": FIGURES,
        "ratios": ratios(),
    }
    a.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for graphs and plans, 40 GB")
    parser.add_argument("--out", type=Path, default=RESULTS / "tensorrt_gpu.json")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lowering", default="fused_norm", help="of every engine but the baseline")
    parser.add_argument("--few", type=int, default=4, help="layers in the stages taps, kept and variants")
    parser.add_argument(
        "--variants", default="fp8:packed,fp8:fused,fp8:fused_gate,fp8:fused_norm,bf16:packed,bf16:fused_norm"
    )
    parser.add_argument("--quick", action="store_true", help="fewer ceilings")
    parser.add_argument("--add", action="store_true", help="keep the figures that --out holds already")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no stage after this time")
    a = parser.parse_args()
    a.said = [f"--{name} {getattr(a, name)}" for name in ("stages", "layers", "batch", "lowering", "few")]
    from workbench.engine.tensorrt.api import load_api

    a.tensorrt = load_api().version
    a.work.mkdir(parents=True, exist_ok=True)
    if a.add and a.out.is_file():
        FIGURES.update(json.loads(a.out.read_text(encoding="utf-8"))["figures"])
    start, state = time.perf_counter(), {}
    for stage in a.stages.split(","):
        if time.perf_counter() - start > a.seconds:
            keep(f"stage {stage}", "left out: time")
            continue
        begun = time.perf_counter()
        try:
            if stage.split("-")[0] in ("fp8", "bf16", "fp16"):
                stage_engine(a, state, stage)
            else:
                globals()[f"stage_{stage}"](a, state)
        except Exception as error:  # noqa: BLE001 - the figures of the other stages are kept
            traceback.print_exc()
            keep(f"stage {stage}", f"{type(error).__name__}: {error}"[:500])
        print(
            f"-- {stage} took {time.perf_counter() - begun:.1f} s, at {time.perf_counter() - start:.0f} s", flush=True
        )
        gc.collect()
        save(a)


if __name__ == "__main__":
    main()
