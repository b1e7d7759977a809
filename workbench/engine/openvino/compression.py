"""Weights of a model in 16, 8 or 4 bits, written as OpenVINO's CPU plugin recognises them.

A constant of codes is converted, shifted, scaled and reshaped before its product; the plugin folds these into kernels
that read the codes, and rounds the activations of a product to 8 bits in groups of the same size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.graph.blocks import BLOCK, quantise
from workbench.graph.grids import Fit, Grid, fit_of, grid_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from workbench.checkpoint.weights import Weights

KINDS = ("int8", "int4", "int4-grid")
_ZEROS = 0x88  # two codes of 8 in a byte


def compress(
    model: Any, modules: Mapping[str, str], kind: str, weights: Weights, group: int = BLOCK
) -> tuple[str, ...]:
    """Replace the weights of products by codes and scales.

    Parameters
    ----------
    model : openvino.Model
        Float32; it is changed.
    modules : mapping of str to str
        Canonical module by the name of its matrix in the model, for those to be replaced.
    kind : str
        One of `KINDS`.
    weights : Weights
        Of the checkpoint; `int4` takes those that were fitted, `int4-grid` reads how the file stores them.
    group : int
        Neighbours of a row that share a scale, for `int8`.

    Returns
    -------
    tuple of str
        Modules that were replaced.
    """
    from openvino import opset13 as op

    done = []
    sums: dict[Any, Any] = {}
    for node, module, matrix in _products(model, modules):
        stored = {"int4": fit_of, "int4-grid": grid_of}[kind](weights, f"{module}.weight") if kind != "int8" else None
        if kind != "int8" and stored is None:
            continue
        x = node.input_value(0)
        values = _bytes(op, matrix, group) if stored is None else _nibbles(op, stored, matrix.shape)
        product = op.matmul(x, values, False, True)
        if isinstance(stored, Grid):
            key = (x.get_node().get_friendly_name(), x.get_index())
            if key not in sums:
                sums[key] = _block_sums(op, x, matrix.shape[1] // BLOCK)
            offsets = op.convert(op.constant(stored.parts[2].astype(np.float16)), "f32")
            product = op.add(product, op.matmul(sums[key], offsets, False, True))
        _replace(node, product)
        done.append(module)
    model.validate_nodes_and_infer_types()
    return tuple(done)


def halve(model: Any, modules: Mapping[str, str]) -> None:
    """Store the weights of products in bfloat16; parameters as for `compress`."""
    import ml_dtypes
    from openvino import Shape, Tensor, Type
    from openvino import opset13 as op

    for node, _, matrix in _products(model, modules):
        bits = matrix.astype(ml_dtypes.bfloat16).view(np.float16)  # NumPy has no bfloat16; the bits are what counts
        constant = op.constant(Tensor(bits, Shape(list(matrix.shape)), Type.bf16), shared_memory=False)
        _replace(node, op.matmul(node.input_value(0), op.convert(constant, "f32"), False, True))
    model.validate_nodes_and_infer_types()


def _products(model: Any, modules: Mapping[str, str]) -> Iterator[tuple[Any, str, NDArray[np.float32]]]:
    """Give each product with one of these matrices, its module, and the matrix as [out, in]."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        source = node.input_value(1).get_node()
        module = modules.get(source.get_friendly_name())
        if module is None or source.get_type_name() != "Constant":
            continue
        matrix = np.asarray(source.data, dtype=np.float32)
        if not node.get_attributes()["transpose_b"]:
            matrix = matrix.T
        yield node, module, np.ascontiguousarray(matrix)


def _replace(node: Any, other: Any) -> None:
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(other.output(0))


def _bytes(op: Any, matrix: NDArray[np.float32], group: int) -> Any:
    codes, scales = quantise(matrix, group)
    signed = (codes.astype(np.int16) - 128).astype(np.int8)  # without a zero point, or the plugin would not see it
    level = op.convert(op.constant(signed), "f32")
    return _flat(op, op.multiply(level, op.constant(np.ascontiguousarray(scales[:, :, None]))), matrix.shape)


def _two_a_byte(fit: Fit) -> NDArray[np.uint8]:
    """Zeros one after another, whatever the length of a row."""
    flat = np.pad(fit.zeros.reshape(-1), (0, fit.zeros.size % 2))
    return np.asarray(flat[0::2] | (flat[1::2] << 4), dtype=np.uint8)


def _nibbles(op: Any, stored: Fit | Grid, shape: tuple[int, ...]) -> Any:
    from openvino import Shape, Tensor, Type

    if isinstance(stored, Fit):
        packed, scales, packed_zeros = stored.packed, stored.scales, _two_a_byte(stored)
    else:
        packed, scales, _ = stored.parts
        packed_zeros = np.full(-(-scales.size // 2), _ZEROS, dtype=np.uint8)
    n_out, n_blocks = scales.shape
    codes = Tensor(packed.reshape(-1), Shape([n_out, n_blocks, BLOCK]), Type.u4)
    zeros = Tensor(packed_zeros, Shape([n_out, n_blocks, 1]), Type.u4)
    level, zero = (op.convert(op.constant(tensor, shared_memory=False), "f32") for tensor in (codes, zeros))
    scaled = op.multiply(op.subtract(level, zero), op.constant(np.ascontiguousarray(scales[:, :, None])))
    return _flat(op, scaled, shape)


def _flat(op: Any, blocks: Any, shape: tuple[int, ...]) -> Any:
    n_out, n_in = shape
    width = int(np.prod(blocks.shape)) // n_out
    flat = op.reshape(blocks, op.constant(np.array([n_out, width], dtype=np.int64)), False)
    if width == n_in:
        return flat
    ends = (np.array([value], dtype=np.int64) for value in (0, n_in, 1, 1))
    return op.slice(flat, *(op.constant(end) for end in ends))


def _block_sums(op: Any, x: Any, n_blocks: int) -> Any:
    shape = op.constant(np.array([0, 0, n_blocks, BLOCK], dtype=np.int64))
    blocks = op.reshape(x, shape, True)
    return op.reduce_sum(blocks, op.constant(np.array([3], dtype=np.int64)), False)


def name_in_order(model: Any) -> None:
    """Name every node by its place, since OpenVINO counts over the whole process and a second build would differ."""
    for index, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() not in ("Parameter", "Result"):
            node.set_friendly_name(f"{node.get_type_name()}.{index}")
