"""Families as Hugging Face's config.json and safetensors files describe them.

Keys and defaults are those of transformers 5.24.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.checkpoint.hf_classic import BLOOM, FALCON, GPT2, GPT_BIGCODE, GPT_NEOX, GPTJ, OPT, PHI
from workbench.checkpoint.hf_experts import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from workbench.checkpoint.hf_gated import (
    ARCEE,
    COHERE,
    COHERE2,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GRANITE,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    OLMO,
    OLMO2,
    OLMO3,
    PHI3,
    QWEN2,
    QWEN3,
    SMOLLM3,
    STABLELM,
    STARCODER2,
)

if TYPE_CHECKING:
    from workbench.checkpoint.table import Family

HF_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        ARCEE, BLOOM, COHERE, COHERE2, FALCON, GEMMA, GEMMA2, GEMMA3, GPT2, GPTJ, GPT_BIGCODE, GPT_NEOX, GRANITE,
        LLAMA, MISTRAL, MIXTRAL, NEMOTRON, OLMO, OLMO2, OLMO3, OLMOE, OPT, PHI, PHI3, QWEN2, QWEN2_MOE, QWEN3,
        QWEN3_MOE, SMOLLM3, STABLELM, STARCODER2,
    )
}  # fmt: skip
