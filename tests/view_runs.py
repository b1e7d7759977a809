"""Small real runs for the tests of views, and a page open in a real browser with no network."""

from __future__ import annotations

import numpy as np

from workbench.prompts import PromptSet
from workbench.store import TapSpec, create_run
from workbench.tokens import TokenTable

CONTRACT = {
    "schema_version": "1.0",
    "engine_id": "e1" * 32,
    "recipe_digest": "aa" * 32,
    "digest": "bb" * 32,
    "checkpoint": {
        "name": "toy-model",
        "digest": "dd" * 32,
        "format": "gguf",
        "family": "llama",
        "n_layers": 2,
        "d_model": 16,
        "d_vocab": 99,
    },
    "backend": {"name": "onnxruntime", "version": "1.32.0", "target": "cpu", "machine": "x86_64", "options": {}},
    "precision": {"name": "fp32", "weights": "float32", "activations": "float32", "accumulators": "float32"},
    "padding_side": "right",
    "positions": "last",
    "norm_point": "final_norm is after the final norm and before the head",
    "taps": ["final_norm"],
    "tokenizer_digest": "cc" * 32,
}


def contract(**changes):
    return {**CONTRACT, **changes}


def int8_contract():
    return contract(engine_id="e2" * 32, precision={**CONTRACT["precision"], "name": "int8", "weights": "int8"})


def make_run(
    path,
    texts,
    columns=None,
    *,
    states=None,
    taps=("final_norm",),
    lengths=None,
    positions="last",
    contract=CONTRACT,
    width=16,
    seed=0,
):
    """A finished run; `states` is float32 [row, width], or by tap, or random numbers."""
    prompts = PromptSet(texts=tuple(texts), columns=dict(columns or {}))
    lengths = np.full(len(texts), 3) if lengths is None else np.asarray(lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = TokenTable(
        ids=(np.arange(offsets[-1]) % 50).astype(np.int32),
        offsets=offsets,
        truncated=np.zeros(len(texts), bool),
        original_lengths=lengths.astype(np.int64),
        lossy=np.zeros(len(texts), bool),
    )
    specs = [TapSpec(name, "F32", width) for name in taps]
    with create_run(
        path,
        prompts=prompts,
        tokens=tokens,
        taps=specs,
        positions=positions,
        contract=contract,
        provenance={"tokenizer_digest": "cc" * 32},
    ) as writer:
        n = int(writer.row_offsets[-1])
        rng = np.random.default_rng(seed)
        rows = {}
        for tap in taps:
            given = states[tap] if isinstance(states, dict) else states
            rows[tap] = (rng.normal(size=(n, width)) if given is None else np.asarray(given)).astype(np.float32)
        writer.commit(0, len(texts), rows)
        return writer.close()
