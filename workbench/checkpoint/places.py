"""Where each weight of a decoder lies in its file; nothing is missing and every shape is as the config says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.checkpoint.table import Family, Part, Row, Stack
from workbench.checkpoint.weights import Origin, origin_shape
from workbench.errors import CheckpointError, shown

if TYPE_CHECKING:
    from workbench.checkpoint.config import DecoderConfig, Experts
    from workbench.checkpoint.source import TensorFile
    from workbench.checkpoint.table import Place

Shapes = dict[str, tuple[int, ...]]
Rows = tuple[tuple[int, int], ...]
WHOLE = "Use the whole checkpoint as published."


def expected(config: DecoderConfig) -> Shapes:
    """List every weight that a decoder has, by canonical name, with its shape; matrices are [out, in]."""
    shapes: Shapes = {"embed.weight": (config.d_vocab, config.d_model)}
    if config.positions:
        shapes["positions.weight"] = (-1, config.d_model)
    if config.embed_norm:
        shapes.update(_norm(config, "embed_norm"))
    for layer in range(config.n_layers):
        shapes.update({f"blocks.{layer}.{name}": shape for name, shape in _block(config, layer).items()})
    shapes.update(_norm(config, "final_norm"))
    if not config.tied:
        shapes["head.weight"] = (config.d_vocab, config.d_model)
    if "head" in config.biases:
        shapes["head.bias"] = (config.d_vocab,)
    return shapes


def _norm(config: DecoderConfig, name: str) -> Shapes:
    if not config.norm_weight:
        return {}
    shapes: Shapes = {f"{name}.weight": (config.d_model,)}
    if "norm" in config.biases:
        shapes[f"{name}.bias"] = (config.d_model,)
    return shapes


def _linear(config: DecoderConfig, name: str, n_out: int, n_in: int) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (n_out, n_in)}
    if name in config.biases:
        shapes[f"{name}.bias"] = (n_out,)
    return shapes


def _block(config: DecoderConfig, layer: int) -> Shapes:
    shapes: Shapes = {}
    for name in ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"):
        if getattr(config, name):
            shapes.update(_norm(config, name))
    d_q, d_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    for name, width in (("q", d_q), ("k", d_kv), ("v", d_kv)):
        shapes.update(_linear(config, name, width, config.d_model))
    shapes.update(_linear(config, "o", config.d_model, d_q))
    shapes.update(_qk_norm(config))
    return {**shapes, **_mlp(config, layer)}


def _qk_norm(config: DecoderConfig) -> Shapes:
    shapes: Shapes = {}
    for name, heads in (("q_norm", config.n_heads), ("k_norm", config.n_kv_heads)):
        if config.qk_norm:
            shape = {"head": (config.head_dim,), "heads": (heads, config.head_dim), "full": (heads * config.head_dim,)}
            shapes[f"{name}.weight"] = shape[config.qk_norm]
            if "qk_norm" in config.biases:
                shapes[f"{name}.bias"] = shape[config.qk_norm]
    return shapes


def _mlp(config: DecoderConfig, layer: int) -> Shapes:
    experts = config.layers[layer].experts
    parts = ("gate", "up") if config.gated else ("up",)
    if experts is None:
        shapes: Shapes = {}
        for name in parts:
            shapes.update(_linear(config, name, config.d_ff, config.d_model))
        return {**shapes, **_linear(config, "down", config.d_model, config.d_ff)}
    shapes = {"router.weight": (experts.n_experts, config.d_model)}
    for expert in range(experts.n_experts):
        shapes.update({f"experts.{expert}.{name}.weight": (experts.d_ff, config.d_model) for name in parts})
        shapes[f"experts.{expert}.down.weight"] = (config.d_model, experts.d_ff)
    if experts.shared_d_ff:
        shapes.update({f"shared.{name}.weight": (experts.shared_d_ff, config.d_model) for name in parts})
        shapes["shared.down.weight"] = (config.d_model, experts.shared_d_ff)
    if experts.shared_gate:
        shapes["shared_gate.weight"] = (1, config.d_model)
    return shapes


_LAYER = re.compile(r"(blocks)\.([0-9]+)\.(.*)", re.ASCII)
_EXPERT = re.compile(r"experts\.([0-9]+)\.(.*)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A canonical tensor, taken apart: module as the table names it, layer, expert, and "weight" or "bias"."""

    module: str
    kind: str
    layer: int = 0
    expert: int = 0

    @property
    def short(self) -> str:
        return self.module.rsplit(".", 1)[-1]

    def fill(self, pattern: str) -> str:
        return pattern.replace("{i}", str(self.layer)).replace("{e}", str(self.expert))


def _wanted(canonical: str) -> _Wanted:
    module, kind = canonical.rsplit(".", 1)
    inside = _LAYER.fullmatch(module)
    if inside is None:
        return _Wanted(module=module, kind=kind)
    layer, name = int(inside[2]), inside[3]
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return _Wanted(module=f"blocks.{{i}}.{name}", kind=kind, layer=layer)
    return _Wanted(module=f"blocks.{{i}}.experts.{{e}}.{expert[2]}", kind=kind, layer=layer, expert=int(expert[1]))


def locate(source: TensorFile, config: DecoderConfig, family: Family) -> tuple[dict[str, Origin], frozenset[str]]:
    """Find every weight of a decoder in its file.

    Returns
    -------
    tuple of (dict of str to Origin, frozenset of str)
        Canonical name to its place, without the head where the file has none; and the tensors that hold no weights.

    Raises
    ------
    CheckpointError
        If a tensor is missing, or has another shape than the config says.
    """
    names = frozenset(source.names)
    bare = bool(family.base) and not any(name.startswith(family.base) for name in names)
    origins: dict[str, Origin] = {}
    for canonical, shape in expected(config).items():
        wanted = _wanted(canonical)
        tried = [_origin(config, family, wanted, place, bare=bare) for place in _places(family, wanted.module)]
        found = next((one for one in tried if one.name in names), None)
        if found is None:
            if wanted.module == "head":
                continue  # a checkpoint of the bare decoder; only the tap `logits` needs it
            missing = tried[0].name if tried else canonical
            raise CheckpointError(
                f"the checkpoint must hold the weights {shown(canonical)}", f"no tensor {shown(missing)}", WHOLE
            )
        _check_shape(source, canonical, shape, found)
        origins[canonical] = found
    ignored = re.compile(family.ignored)
    return origins, frozenset(name for name in names if ignored.fullmatch(name))


def _check_shape(source: TensorFile, canonical: str, shape: tuple[int, ...], found: Origin) -> None:
    missing = [name for name in found.stacked if name not in source]
    if missing:
        raise CheckpointError(
            f"the checkpoint must hold all of {shown(canonical)}", f"no tensor {shown(missing[0])}", WHOLE
        )
    whole = source.shape(found.name)
    rows = whole[-1] if found.transposed else whole[1 if found.index is not None else 0] if whole else 0
    got = origin_shape(source, found)
    fits = len(got) == len(shape) and all(want in (-1, size) for want, size in zip(shape, got, strict=True))
    inside = found.rows is None or found.rows[-1][1] <= rows
    if not fits or not inside or (found.total and rows != found.total):
        raise CheckpointError(
            f"{shown(canonical)} must be {list(shape)} as the config says",
            f"{shown(found.name)} of {list(whole)}",
            "Use config and weights of one checkpoint.",
        )


def _places(family: Family, module: str) -> tuple[Place, ...]:
    place = family.places.get(module, ())
    return place if isinstance(place, tuple) else (place,)


def _origin(config: DecoderConfig, family: Family, wanted: _Wanted, place: Place, *, bare: bool) -> Origin:
    plus = family.plus.get(wanted.module, 0.0) if wanted.kind == "weight" else 0.0
    turned = wanted.kind == "weight" and wanted.short in family.transposed
    if isinstance(place, Row):
        return Origin(name=_cut(wanted.fill(place.name), family, bare=bare), as_row=True)
    if isinstance(place, Stack):
        rows, _ = _halves(place.part, config.layers[wanted.layer].experts) if place.part else (None, 0)
        return Origin(name=_cut(wanted.fill(place.name), family, bare=bare), index=wanted.expert, rows=rows)
    name = _cut(wanted.fill(place.module if isinstance(place, Part) else place), family, bare=bare) + f".{wanted.kind}"
    if isinstance(place, Part):
        rows, total = _rows(config, place)
        return Origin(name=name, rows=rows, total=total, transposed=turned, plus=plus)
    if "{h}" in name:
        heads = config.n_heads if wanted.short == "q_norm" else config.n_kv_heads
        stacked = tuple(name.replace("{h}", str(head)) for head in range(heads))
        return Origin(name=stacked[0], stacked=stacked, plus=plus)
    return Origin(name=name, transposed=turned, plus=plus)


def _cut(name: str, family: Family, *, bare: bool) -> str:
    return name.removeprefix(family.base) if bare else name


def _halves(part: str, experts: Experts | None) -> tuple[Rows, int]:
    width = experts.d_ff if experts else 0
    return ((0, width) if part == "gate" else (width, 2 * width),), 2 * width


def _rows(config: DecoderConfig, place: Part) -> tuple[Rows, int]:
    """Rows of a fused tensor, and how many the whole of it has (0 where that is not known)."""
    if place.part == "after 2":  # OPT keeps two rows in front of position 0
        return ((2, config.max_positions + 2),), config.max_positions + 2
    if place.part in ("gate", "up"):
        width = config.d_ff
        return ((0, width) if place.part == "gate" else (width, 2 * width),), 2 * width
    heads, kv, dim = config.n_heads, config.n_kv_heads, config.head_dim
    total = (heads + 2 * kv) * dim
    if not place.grouped:
        starts = {"q": (0, heads * dim), "k": (heads * dim, (heads + kv) * dim), "v": ((heads + kv) * dim, total)}
        return (starts[place.part],), total
    group = heads // kv
    first, n = {"q": (0, group), "k": (group, 1), "v": (group + 1, 1)}[place.part]
    starts_of = ((g * (group + 2) + first) * dim for g in range(kv))
    return tuple((start, start + n * dim) for start in starts_of), total
