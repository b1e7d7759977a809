"""Taps: the named points of a decoder at which hidden states leave the graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workbench.errors import TapError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.checkpoint.config import DecoderConfig

# In the order in which a block computes them. `embed` is what enters block 0: scaled, learned positions added.
BLOCK_TAPS = ("resid_pre", "attn_out", "mlp_out", "resid_post")
_BLOCK = re.compile(r"blocks\.(0|[1-9][0-9]*)\.(resid_pre|attn_out|mlp_out|resid_post)", re.ASCII)


def tap_names(config: DecoderConfig) -> tuple[str, ...]:
    """List every tap of a decoder, in the order of computation; `logits` is the head and costs the most."""
    blocks = (f"blocks.{layer}.{part}" for layer in range(config.n_layers) for part in BLOCK_TAPS)
    return ("embed", *blocks, "final_norm", "logits")


def tap_width(config: DecoderConfig, tap: str) -> int:
    """Give the number of components of a tap's rows."""
    return config.d_vocab if tap == "logits" else config.d_model


def check_taps(config: DecoderConfig, taps: Sequence[str]) -> tuple[str, ...]:
    """Check that every tap exists and none is named twice.

    Parameters
    ----------
    config : DecoderConfig
        The decoder.
    taps : sequence of str
        Names as in `tap_names`.

    Returns
    -------
    tuple of str
        The same names.

    Raises
    ------
    TapError
        If there is none, one does not exist (the message says which do), or one stands there twice.
    """
    last = config.n_layers - 1
    offered = f"Use embed, blocks.0 to blocks.{last} with {', '.join(BLOCK_TAPS)}, final_norm or logits."
    if isinstance(taps, str):
        raise TapError("taps must be a sequence of names", f"the text {taps!r}", f'Write taps=("{taps}",). {offered}')
    if not taps:
        raise TapError("an engine must have at least one tap", "none", offered)
    for tap in taps:
        block = _BLOCK.fullmatch(tap) if isinstance(tap, str) else None
        if tap not in ("embed", "final_norm", "logits") and not (block and int(block[1]) <= last):
            raise TapError(f"a tap must exist in this decoder of {config.n_layers} layers", repr(tap), offered)
    if len(set(taps)) < len(taps):
        raise TapError("each tap must be named once", ", ".join(taps), "Leave out the repeated name.")
    return tuple(taps)


def where(config: DecoderConfig, tap: str) -> tuple[int, str]:
    """Say which block computes a tap, and which value of that block it is.

    Returns
    -------
    tuple of (int, str)
        Block, and part of it. The stream before block `i` is the one after block `i - 1`; -1 with "embed" is the
        embedding; `n_layers` with "final_norm" or "logits" stands behind the last block.
    """
    if tap == "embed":
        return -1, "embed"
    if tap in ("final_norm", "logits"):
        return config.n_layers, tap
    _, layer, part = tap.split(".")
    if part == "resid_pre":
        return (int(layer) - 1, "resid_post") if int(layer) else (-1, "embed")
    return int(layer), part
