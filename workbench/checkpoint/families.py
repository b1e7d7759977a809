"""From a config and a file of tensors to one `DecoderConfig` and canonical `Weights`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.config import DecoderConfig
from workbench.checkpoint.gguf_families import resolve_gguf
from workbench.checkpoint.hf_families import HF_FAMILIES
from workbench.checkpoint.hf_keys import HARMLESS, MUST
from workbench.checkpoint.places import locate
from workbench.checkpoint.table import CHECK, Facts, Family, layers_from
from workbench.checkpoint.weights import Weights
from workbench.errors import CheckpointError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.checkpoint.source import TensorFile

# Far above what is published: a hostile number must not become a long loop.
MAX_SIZES = {"n_layers": 4096, "n_heads": 65_536, "n_kv_heads": 65_536, "head_dim": 65_536, "max_positions": 1 << 40}


def resolve(source: TensorFile, config: Mapping[str, Any]) -> tuple[DecoderConfig, Weights]:
    """Find out what decoder a checkpoint holds.

    Parameters
    ----------
    source : TensorFile
        Tensors of the checkpoint.
    config : mapping
        The parsed config.json, or the metadata of a GGUF file.

    Returns
    -------
    tuple of (DecoderConfig, Weights)
        What the graph needs; no tensor is read but small ones that hold settings.

    Raises
    ------
    UnsupportedError
        If the family, or a field of the config, is not one that this version computes correctly.
    CheckpointError
        If a tensor is missing or has another shape than the config says.
    """
    if "general.architecture" in config:
        family, facts = resolve_gguf(source, config)
        harmless = family.harmless
    else:
        family, facts = _hf(source, config)
        harmless = HARMLESS | family.harmless
    decoder = decoder_from(facts, family)
    left = facts.leftovers(harmless | {"model_type"})
    if left:
        raise UnsupportedError(
            f"every key of {facts.label} must be known to this version for the family {family.name}",
            ", ".join(map(shown, left[:8])),
            "Remove the key only if it changes no number of a forward pass.",
        )
    origins, ignored = locate(source, decoder, family)
    return decoder, Weights(source, origins, ignored=ignored)


def _hf(source: TensorFile, config: Mapping[str, Any]) -> tuple[Family, Facts]:
    name = config.get("model_type")
    if not isinstance(name, str) or name not in HF_FAMILIES:
        raise UnsupportedError(
            "the model_type of config.json must be a supported family",
            shown(name) if name is not None else "no model_type",
            f"Supported: {', '.join(sorted(HF_FAMILIES))}.",
        )
    family = HF_FAMILIES[name]
    facts = Facts(
        config, label="config.json", has=lambda tensor: tensor in source, read=source.read, shape=source.shape
    )
    check_must({**MUST, **family.must}, facts)
    return family, facts


def check_must(must: Mapping[str, tuple[object, ...]], facts: Facts) -> None:
    """Refuse keys whose value is not one that is computed."""
    for key, allowed in must.items():
        value = facts.get(key)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            what = f"{key!r} of {facts.label} must be " + (" or ".join(map(repr, allowed)) if allowed else "absent")
            raise UnsupportedError(what, shown(value), "This version cannot compute what it asks for.")


def decoder_from(facts: Facts, family: Family) -> DecoderConfig:
    """Read every field of `DecoderConfig` by the family's entry."""
    for name, rule in family.sizes.items():
        facts.size[name] = facts.number(rule, name)
    size: dict[str, Any] = dict(facts.size)
    for name, value in size.items():
        cap = MAX_SIZES.get(name, 1 << 24)
        if value > cap:  # before anything is made that has one entry a layer, head or component
            raise CheckpointError(f"{name} of {facts.label} must be at most {cap}", f"{value}", CHECK)
    if "head_dim" in size and size["n_heads"] % size["n_kv_heads"]:
        raise UnsupportedError(
            "the query heads must be a multiple of the key-value heads",
            f"{size['n_heads']} and {size['n_kv_heads']}",
            CHECK,
        )
    traits = {name: facts.value(rule) for name, rule in family.traits.items()}
    biases = frozenset(
        module for modules, rule in family.biases.items() if facts.value(rule) for module in modules.split()
    )
    for key in re.split(r"\s+", "head_dim tie_word_embeddings"):
        facts.get(key)
    return DecoderConfig(family=family.name, layers=layers_from(facts, family), biases=biases, **size, **traits)
