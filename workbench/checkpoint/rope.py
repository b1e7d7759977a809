"""Rotary frequencies: every scaling rule becomes a list of angles per position, so that the graph knows none of them.

The arithmetic is float32 in the order of the reference, so that the angles of late positions agree.

References
----------
Su et al. (2021), arXiv:2104.09864; Peng et al. (2023), arXiv:2309.00071 (yarn); Ding et al. (2024), arXiv:2402.13753
(longrope); `modeling_rope_utils.py` of transformers 5.24.0 names the keys.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from workbench.checkpoint.config import Rope
from workbench.errors import UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "max_position_embeddings"})
_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset({"factor", "original_max_position_embeddings"}),
    "linear": frozenset({"factor", "original_max_position_embeddings"}),
    "dynamic": frozenset({"factor", "original_max_position_embeddings"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
        | {"original_max_position_embeddings"}
    ),
    "longrope": frozenset(
        {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"}
        | {"short_mscale", "long_mscale"}
    ),
}
_ALIASES = {"su": "longrope", "ntk": "dynamic"}


def rope_from(
    parameters: Mapping[str, Any],
    *,
    head_dim: int,
    dims: int,
    theta: float,
    max_positions: int,
    interleaved: bool = False,
) -> Rope:
    """Turn the rope parameters of a config into frequencies.

    Parameters
    ----------
    parameters : mapping
        `rope_parameters` or `rope_scaling` of a config; empty for plain rope.
    head_dim, dims : int
        Width of a head, and how many of its components are turned.
    theta : float
        Base, where `parameters` states none.
    max_positions : int
        Longest prompt that the config declares.
    interleaved : bool
        Whether pairs are neighbours.

    Returns
    -------
    Rope
        The frequencies, with the length up to which they hold.

    Raises
    ------
    UnsupportedError
        If the rule or one of its keys is not known, or a needed key is missing.
    """
    stated = str(parameters.get("rope_type") or parameters.get("type") or "default")
    kind = _ALIASES.get(stated, stated)
    if kind not in _KEYS:
        raise UnsupportedError(
            f"the rope type must be one of {', '.join(_KEYS)}", shown(stated), "This version cannot compute it."
        )
    unknown = [key for key in parameters if key not in _KEYS[kind] | _COMMON and parameters[key] is not None]
    if unknown:
        raise UnsupportedError(
            f"every key of rope {kind} must be known",
            ", ".join(map(shown, sorted(unknown))),
            "This version cannot compute it.",
        )
    if dims < 2 or dims > head_dim or dims % 2:
        raise UnsupportedError("the turned part of a head must be even and fit the head", f"{dims} of {head_dim}", _BAD)
    base = _number(parameters, "rope_theta", theta)
    rule = _RULES[kind]
    inv_freq, magnitude, limit = rule(base, dims, parameters, max_positions)
    if not np.all(np.isfinite(inv_freq)):
        raise UnsupportedError("rope frequencies must be finite", f"base {base}", _BAD)
    return Rope(
        dims=dims,
        inv_freq=tuple(float(value) for value in inv_freq),
        interleaved=interleaved,
        magnitude=magnitude,
        max_tokens=limit,
    )


_BAD = "Check config.json against the published one."
_Made = tuple["NDArray[np.float32]", float, int | None]


def _number(parameters: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = parameters.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UnsupportedError(f"rope parameter {key!r} must be a positive number", shown(value), _BAD)
    return float(value)


def _powers(base: float, dims: int) -> NDArray[np.float32]:
    exponent = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    return cast("NDArray[np.float32]", np.float32(base) ** exponent)


def _plain(base: float, dims: int, _parameters: Mapping[str, Any], _max: int) -> _Made:
    return np.float32(1) / _powers(base, dims), 1.0, None


def _linear(base: float, dims: int, parameters: Mapping[str, Any], _max: int) -> _Made:
    return np.float32(1) / _powers(base, dims) / np.float32(_number(parameters, "factor")), 1.0, None


def _dynamic(base: float, dims: int, parameters: Mapping[str, Any], max_positions: int) -> _Made:
    _number(parameters, "factor")
    return np.float32(1) / _powers(base, dims), 1.0, max_positions  # scaled only in longer prompts, by their length


def _llama3(base: float, dims: int, parameters: Mapping[str, Any], max_positions: int) -> _Made:
    factor, low, high = (_number(parameters, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _number(parameters, "original_max_position_embeddings", max_positions)
    inv_freq = np.float32(1) / _powers(base, dims)
    wavelength = np.float32(2 * math.pi) / inv_freq
    slow = np.where(wavelength > original / low, inv_freq / np.float32(factor), inv_freq)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * slow / np.float32(factor) + smooth * slow
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(medium, between, slow).astype(np.float32), 1.0, None


def _yarn(base: float, dims: int, parameters: Mapping[str, Any], max_positions: int) -> _Made:
    original = _number(parameters, "original_max_position_embeddings", max_positions)
    factor = _number(parameters, "factor", max_positions / original)
    low, high = (
        dims * math.log(original / (_number(parameters, key, default) * 2 * math.pi)) / (2 * math.log(base))
        for key, default in (("beta_fast", 32), ("beta_slow", 1))
    )
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    powers = _powers(base, dims)
    kept = 1 - ramp
    inv_freq = (np.float32(1) / (np.float32(factor) * powers)) * (1 - kept) + (np.float32(1) / powers) * kept
    return inv_freq.astype(np.float32), _yarn_magnitude(parameters, factor), None


def _yarn_magnitude(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "attention_factor")

    def magnitude(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return magnitude(_number(parameters, "mscale")) / magnitude(_number(parameters, "mscale_all_dim"))
    return magnitude(1.0)


def _longrope(base: float, dims: int, parameters: Mapping[str, Any], max_positions: int) -> _Made:
    if any(parameters.get(key) is not None for key in ("short_mscale", "long_mscale")):
        raise UnsupportedError("longrope must have no magnitudes of its own", "short_mscale or long_mscale", _BAD)
    original = _number(parameters, "original_max_position_embeddings", max_positions)
    factor = _number(parameters, "factor", max_positions / original)
    short = _factors(parameters, "short_factor", dims // 2)
    _factors(parameters, "long_factor", dims // 2)
    magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    magnitude = _number(parameters, "attention_factor", magnitude)
    return np.float32(1) / (short * _powers(base, dims)), magnitude, int(original)  # longer prompts use the long ones


def _factors(parameters: Mapping[str, Any], key: str, size: int) -> NDArray[np.float32]:
    values: Sequence[float] = parameters.get(key) or ()
    if len(values) != size:
        raise UnsupportedError(f"rope parameter {key!r} must hold {size} factors", f"{len(values)}", _BAD)
    return np.asarray(values, dtype=np.float32)


_RULES: dict[str, Callable[[float, int, Mapping[str, Any], int], _Made]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
