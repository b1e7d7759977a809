"""Rules that entries of the table share: activations, sliding windows, rotary positions, experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.config import Experts, Rope
from workbench.checkpoint.rope import rope_from
from workbench.checkpoint.table import CHECK, Facts, Key
from workbench.errors import UnsupportedError, shown

if TYPE_CHECKING:
    from workbench.checkpoint.table import Rule

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def activation(name: object) -> str:
    """Name an activation as the graph does.

    Raises
    ------
    UnsupportedError
        If the graph has none of this name.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedError(f"the activation must be one of {', '.join(ACTIVATIONS)}", shown(name), CHECK)
    return ACTIVATIONS[name]


def number(value: Any) -> float:
    """Take a finite number from a config."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnsupportedError("a factor of the config must be a finite number", shown(value), CHECK)
    return float(value)


def window(value: Any) -> int:
    """Take a window from a config."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedError("a sliding window must be a whole number above 0", shown(value), CHECK)
    return value


# Windows ----------------------------------------------------------------------------------------------------------


def sliding_everywhere(default: int | None) -> Rule:
    """Use `sliding_window` on every layer."""

    def rule(facts: Facts) -> int | None:
        if "sliding_window" in facts.stated_null:
            return None
        value = facts.get("sliding_window", default)
        return None if value is None else window(value)

    return rule


def sliding_by_type(kinds: Callable[[Facts], list[str]], *, default: int | None = 4096, switch: str = "") -> Rule:
    """Use `sliding_window` on the layers that `layer_types`, or else `kinds`, calls sliding.

    `switch` is a key that must be true for any window to exist.
    """

    def rule(facts: Facts) -> tuple[int | None, ...]:
        size = None if "sliding_window" in facts.stated_null else facts.get("sliding_window", default)
        if switch and not facts.get(switch, False):
            size = None
        types = layer_types(facts, kinds)
        if size is None and switch:
            types = ["full_attention"] * len(types)
        if size is None and "sliding_attention" in types:
            raise UnsupportedError("a sliding layer must have a window", "sliding_window null", CHECK)
        return tuple(window(size) if kind == "sliding_attention" else None for kind in types)

    return rule


def layer_types(facts: Facts, kinds: Callable[[Facts], list[str]]) -> list[str]:
    """Read `layer_types`, or make them by the family's own pattern."""
    default = kinds(facts)
    types = list(facts.get("layer_types", default))
    wrong = sorted({shown(kind) for kind in types} - {"'full_attention'", "'sliding_attention'"})
    if wrong:
        raise UnsupportedError("a layer must be full_attention or sliding_attention", ", ".join(wrong), CHECK)
    return types


def every(n_key: str, n: int) -> Callable[[Facts], list[str]]:
    """Every n-th layer is full, the others slide."""

    def kinds(facts: Facts) -> list[str]:
        step = int(facts.get("_sliding_window_pattern", facts.get("sliding_window_pattern", n))) if n_key else n
        return ["sliding_attention" if (i + 1) % step else "full_attention" for i in range(facts.n_layers)]

    return kinds


def from_layer(facts: Facts) -> list[str]:
    """Layers from `max_window_layers` on slide (Qwen)."""
    first = facts.get("max_window_layers", 28)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(facts.n_layers)]


def all_full(facts: Facts) -> list[str]:
    """No layer slides unless `layer_types` says so."""
    return ["full_attention"] * facts.n_layers


# Rotary positions -------------------------------------------------------------------------------------------------


def rope_everywhere(*, theta: float = 10_000.0, part: Rule = None, interleaved: bool = False) -> Rule:
    """Turn every layer alike; `part` is the turned share of a head, or a `Key` of it."""

    def rule(facts: Facts) -> Rope:
        return _hf_rope(facts, rope_dict(facts), theta=theta, part=part, interleaved=interleaved)

    return rule


def rope_where(turns: Callable[[Facts], list[bool]], **options: Any) -> Rule:
    """Turn only some layers."""
    everywhere = rope_everywhere(**options)

    def rule(facts: Facts) -> tuple[Rope | None, ...]:
        rope = everywhere(facts)
        return tuple(rope if turn else None for turn in turns(facts))

    return rule


def rope_by_type(kinds: Callable[[Facts], list[str]], *, theta: float, local: Rule, local_scaled: bool = False) -> Rule:
    """Turn sliding layers by their own base (`local`), without the scaling of the full ones."""

    def rule(facts: Facts) -> tuple[Rope, ...]:
        parameters = rope_dict(facts)
        nested = {key: parameters.get(key) for key in ("full_attention", "sliding_attention")}
        base = facts.get("rope_theta", theta)
        local_base = number(facts.value(local)) if local is not None else base
        if any(isinstance(value, Mapping) for value in nested.values()):
            both = {key: value or {} for key, value in nested.items()}
            parameters = {k: v for k, v in parameters.items() if k not in nested}
            if parameters:
                raise UnsupportedError("rope by layer type must hold nothing else", ", ".join(parameters), CHECK)
        else:
            both = {"full_attention": parameters, "sliding_attention": parameters if local_scaled else {}}
        made = {
            "full_attention": _hf_rope(facts, both["full_attention"], theta=base),
            "sliding_attention": _hf_rope(facts, both["sliding_attention"], theta=local_base, stated=False),
        }
        return tuple(made[kind] for kind in layer_types(facts, kinds))

    return rule


def rope_dict(facts: Facts) -> dict[str, Any]:
    """Read `rope_parameters`, or `rope_scaling` of older configs.

    Raises
    ------
    UnsupportedError
        If it is no mapping.
    """
    new, old = facts.get("rope_parameters"), facts.get("rope_scaling")
    value = old or new or {}
    if not isinstance(value, Mapping):
        raise UnsupportedError("rope parameters must be a mapping", shown(value), CHECK)
    return {key: item for key, item in value.items() if item is not None}


def _hf_rope(
    facts: Facts,
    parameters: dict[str, Any],
    *,
    theta: float,
    part: Rule = None,
    interleaved: bool = False,
    stated: bool = True,
) -> Rope:
    base = facts.get("rope_theta", facts.get("rotary_emb_base", theta)) if stated else theta
    share = parameters.get("partial_rotary_factor")
    if share is None:
        share = facts.value(part) if part is not None else 1.0
    elif part is None and share != 1.0:
        raise UnsupportedError("this family must turn whole heads", f"partial_rotary_factor {share}", CHECK)
    elif part is not None:
        facts.value(part)
    dims = int(facts.head_dim * number(share))
    original = facts.get("original_max_position_embeddings")
    kind = parameters.get("rope_type") or parameters.get("type")
    if original is not None and kind in ("llama3", "yarn", "longrope", "su"):
        parameters = {**parameters, "original_max_position_embeddings": original}
    return rope_from(
        parameters,
        head_dim=facts.head_dim,
        dims=dims,
        theta=number(base),
        max_positions=facts.max_positions,
        interleaved=interleaved,
    )


# Experts ----------------------------------------------------------------------------------------------------------


def experts(
    *,
    n: str,
    d_ff: str,
    renormalise: Rule,
    shared: Rule = 0,
    gate: bool = False,
    sparse: Callable[[Facts], list[bool]] | None = None,
) -> Rule:
    """Put experts in place of the MLP, on the layers that `sparse` names."""

    def rule(facts: Facts) -> tuple[Experts | None, ...]:
        made = Experts(
            n_experts=facts.number(Key(n), "the number of experts"),
            top_k=facts.number(Key("num_experts_per_tok"), "the experts per token"),
            d_ff=facts.number(Key(d_ff), "the width of an expert"),
            renormalise=bool(facts.value(renormalise)),
            shared_d_ff=int(facts.value(shared)),
            shared_gate=gate,
        )
        if made.top_k > made.n_experts:
            raise UnsupportedError("a token must use at most all experts", f"{made.top_k} of {made.n_experts}", CHECK)
        where = sparse(facts) if sparse else [True] * facts.n_layers
        return tuple(made if here else None for here in where)

    return rule


def sparse_steps(facts: Facts) -> list[bool]:
    """Layers with experts: each `decoder_sparse_step`-th, but those of `mlp_only_layers` (Qwen)."""
    step = int(facts.get("decoder_sparse_step", 1))
    dense = set(facts.get("mlp_only_layers", ()))
    return [i not in dense and step > 0 and (i + 1) % step == 0 for i in range(facts.n_layers)]


def alibi_slopes(n_heads: int, top: float = 8.0) -> tuple[float, ...]:
    """Slopes of the linear biases of n heads (Press et al. 2021, arXiv:2108.12409, as BLOOM orders them)."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-top / power * (i + 1)) for i in range(power)]
    between = [2.0 ** (-top / (2 * power) * (2 * i + 1)) for i in range(n_heads - power)]
    return (*slopes, *between)
