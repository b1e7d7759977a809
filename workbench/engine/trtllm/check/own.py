"""The workbench's own engine of a checkpoint, run over prompts, for comparison; runs in its own process.

python -m workbench.engine.trtllm.check.own MODEL OUT.npz --backend tensorrt --precision bf16 [--prompts FILE.npz]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
MAX_TOKENS, PROMPTS_PER_PASS = 128, 8


def main() -> None:
    """Build the engine in a folder that goes away, and write its rows.

    The file holds `input_ids` int32 [prompt, column], `lengths` int64 [prompt], `final_norm` float32
    [prompt, column, d_model] and `engine`, what made them.
    """
    from workbench.checkpoint import open_checkpoint
    from workbench.engine import Recipe, build
    from workbench.engine.reference import reference_prompts

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--prompts", type=Path, help="with input_ids and lengths; default: the workbench's own")
    given = parser.parse_args()
    checkpoint = open_checkpoint(given.model)
    if given.prompts:
        with np.load(given.prompts) as data:
            prompts = [row[:n].astype(np.int32) for row, n in zip(data["input_ids"], data["lengths"], strict=True)]
    else:
        prompts = list(reference_prompts(checkpoint, MAX_TOKENS, "all"))
    limits = {"tokens_per_pass": PROMPTS_PER_PASS * MAX_TOKENS} if given.backend == "tensorrt" else {}
    recipe = Recipe(
        checkpoint=checkpoint,
        precision=given.precision,
        positions="all",
        backend=given.backend,
        max_tokens=MAX_TOKENS,
        options=limits,
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = build(recipe, folder)
        parts = [engine.run([prompt])["final_norm"] for prompt in prompts]
    lengths = np.array([len(prompt) for prompt in prompts])
    table = np.zeros((len(prompts), lengths.max()), np.int32)
    states = np.zeros((*table.shape, checkpoint.config.d_model), np.float32)
    for i, (prompt, rows) in enumerate(zip(prompts, parts, strict=True)):
        table[i, : len(prompt)], states[i, : len(prompt)] = prompt, rows
    name = f"{given.backend} {engine.contract.backend.version}, {given.precision}"
    np.savez(given.out, input_ids=table, lengths=lengths, final_norm=states, engine=name)


if __name__ == "__main__":
    main()
