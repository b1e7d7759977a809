"""Mixture of experts: each expert computes only the tokens that chose it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.checkpoint.config import Experts
    from workbench.graph.linear import Linear
    from workbench.graph.lowering import Opset23


def mixture(
    low: Opset23, linear: Linear, x: str, prefix: str, *, experts: Experts, mlp: Callable[[str, str], str]
) -> str:
    """Emit router, chosen experts and shared expert.

    Parameters
    ----------
    low, linear : Opset23, Linear
        Of the graph.
    x : str
        Value [prompt, token, d_model].
    prefix : str
        Canonical name of the block.
    experts : Experts
        How many, and how their weights are made.
    mlp : callable
        Emits a plain MLP of the modules under a prefix.

    Returns
    -------
    str
        Value of the shape of `x`.
    """
    em, width = low.emitter, low.config.d_model
    flat = em.op("Reshape", x, em.integers(-1, width))
    scores = em.op("Softmax", linear(flat, f"{prefix}.router"), axis=-1)
    shares, chosen = em.ops("TopK", scores, em.integers(experts.top_k), n=2, axis=-1)
    if experts.renormalise:
        shares = em.op("Div", shares, em.op("ReduceSum", shares, em.integers(-1), keepdims=1))
    total = (
        em.op("Mul", flat, em.scalar(0.0))
        if not experts.shared_d_ff
        else _shared(low, linear, flat, prefix, experts=experts, mlp=mlp)
    )
    for expert in range(experts.n_experts):
        hit = em.op("Equal", chosen, em.integers(expert))
        # NonZero gives (token, which of its choices) of every hit, in the order of tokens
        tokens, _ = em.ops("Split", em.op("NonZero", hit), em.integers(1, 1), n=2, axis=0)
        where = em.op("Transpose", em.op("NonZero", hit), perm=[1, 0])
        tokens = em.op("Squeeze", tokens, em.integers(0))
        share = em.op("Unsqueeze", em.op("GatherND", shares, where), em.integers(1))
        y = em.op("Mul", mlp(em.op("Gather", flat, tokens, axis=0), f"{prefix}.experts.{expert}"), share)
        total = em.op("ScatterND", total, em.op("Unsqueeze", tokens, em.integers(1)), y, reduction="add")
    return em.op("Reshape", total, em.op("Shape", x))


def _shared(
    low: Opset23, linear: Linear, flat: str, prefix: str, *, experts: Experts, mlp: Callable[[str, str], str]
) -> str:
    """Emit the expert that every token uses, scaled by its gate."""
    y = mlp(flat, f"{prefix}.shared")
    if not experts.shared_gate:
        return y
    gate = low.emitter.op("Sigmoid", linear(flat, f"{prefix}.shared_gate"))
    return low.emitter.op("Mul", y, gate)
