"""Integer products: a float32 graph becomes one whose weights are 8 or 4 bits, with integer sums where it helps.

`int8-dynamic` has one scale an output of each matrix and one a token of its input; `int8-static` has one calibrated
scale for the whole input. `int4` has weights that were fitted to 4 bits, with a scale and a zero for each block of 32:
value = scale * (code - zero); `int4-grid` keeps the 4-bit grid that the checkpoint's own file has, so that no weight
moves at all: value = scale * code + offset, and the offsets meet the sums of the inputs of their block. The table of
embeddings of the 4-bit kinds is 8 bits in blocks of 32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import ContractError
from workbench.graph.artefact import LazyTensor, external
from workbench.graph.blocks import BLOCK, quantise
from workbench.graph.emitter import CONTRIB
from workbench.graph.grids import fit_of, grid_of
from workbench.graph.naming import is_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.checkpoint.weights import Weights
    from workbench.graph.artefact import Graph

KINDS = ("int8-dynamic", "int8-static", "int4", "int4-grid")
EMBED = "embed.weight"
_FLOAT = 1
_MIDDLE = 128  # zero point of unsigned activations


def compact(
    graph: Graph,
    kind: str,
    weights: Weights,
    *,
    largest: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
) -> Graph:
    """Give a graph whose products with weights are integer ones.

    Parameters
    ----------
    graph : Graph
        Float32, with one MatMul for each matrix.
    kind : str
        One of `KINDS`.
    weights : Weights
        Of the checkpoint; `int4` takes those that were fitted, `int4-grid` reads how the file stores them.
    largest : mapping of str to float
        Largest absolute input of each module, for `int8-static`.
    keep : sequence of str
        Modules that stay in float32; `*` and `?` stand for any part of a name.

    Returns
    -------
    Graph
        Same inputs and outputs; `policy` says what each module became.

    Raises
    ------
    ContractError
        If the kind is not known.
    """
    if kind not in KINDS:
        raise ContractError(f"integer precisions are {', '.join(KINDS)}", repr(kind), "Use one of these.")
    return _Compactor(graph, kind, weights, largest or {}, tuple(keep)).write()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """One product to be replaced."""

    x: str
    y: str
    name: str
    module: str
    n_in: int
    n_out: int


class _Compactor:
    def __init__(
        self, graph: Graph, kind: str, weights: Weights, largest: Mapping[str, float], keep: tuple[str, ...]
    ) -> None:
        self.graph, self.kind, self.weights, self.largest, self.keep = graph, kind, weights, largest, keep
        self.nodes: list[Any] = []
        self.small: dict[str, NDArray[Any]] = {}
        self.lazy: dict[str, LazyTensor] = {}
        self.made: dict[tuple[str, ...], str] = {}
        self.policy = dict.fromkeys(graph.policy, "fp32")

    def write(self) -> Graph:
        from onnx import ModelProto, TensorProto, helper, numpy_helper

        model = ModelProto()
        model.CopyFrom(self.graph.model)
        body = model.graph
        matrices = {f"{module}.weight": module for module in self.graph.policy}
        for node in self.graph.model.graph.node:
            module = matrices.get(node.input[1]) if node.op_type == "MatMul" and len(node.input) > 1 else None
            if module is not None and self._takes(module):
                self._product(node, module)
            elif self.kind.startswith("int4") and node.op_type == "Gather" and node.input[0] == EMBED:
                self._embedding(node)
            else:
                self.nodes.append(node)
        if self.policy and self.kind not in self.policy.values():
            raise ContractError(
                f"{self.kind} must find a matrix that it can take",
                "none: the file has no 4-bit grid" if self.kind == "int4-grid" else "none",
                "Choose another precision; int4-grid is for checkpoints that are Q4_0 or Q4_1 already.",
            )
        used = {name for node in self.nodes for name in node.input}
        lazy = {name: t for name, t in self.graph.initialisers.items() if name in used} | self.lazy
        inner = [t for t in body.initializer if t.data_location != TensorProto.EXTERNAL and t.name in used]
        tensors = [*inner, *(numpy_helper.from_array(array, name) for name, array in self.small.items())]
        tensors += [external(name, tensor) for name, tensor in lazy.items()]
        new = helper.make_graph(self.nodes, body.name, list(body.input), list(body.output), tensors)
        imports = {item.domain: item.version for item in model.opset_import} | {CONTRIB: 1}
        opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(imports.items())]
        made = helper.make_model(new, opset_imports=opsets, ir_version=model.ir_version, producer_name="workbench")
        return replace(self.graph, model=made, initialisers=lazy, precision=self.kind, policy=self.policy)

    def _takes(self, module: str) -> bool:
        if is_named(module, self.keep):
            return False
        if self.kind == "int8-static":
            return module in self.largest
        find = {"int4": fit_of, "int4-grid": grid_of}.get(self.kind)
        return find is None or find(self.weights, f"{module}.weight") is not None

    def _product(self, node: Any, module: str) -> None:
        name = node.input[1]
        n_in, n_out = self.graph.initialisers[name].shape
        product = _Product(x=node.input[0], y=node.output[0], name=name, module=module, n_in=n_in, n_out=n_out)
        emit = {
            "int8-dynamic": self._dynamic,
            "int8-static": self._static,
            "int4": self._blocks,
            "int4-grid": self._grid,
        }[self.kind]
        emit(product)
        self.policy[module] = self.kind

    def _op(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        node = helper.make_node(op, list(inputs), [output], name=f"{output}:{op}", domain=domain, **attributes)
        self.nodes.append(node)
        return output

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        self.small.setdefault(name, array)
        return name

    def _once(self, key: tuple[str, ...], make: Callable[[], str]) -> str:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def _matrix(self, product: _Product) -> NDArray[np.float32]:
        """Weights [out, in], from the graph, so that what was smoothed stays so."""
        loaded: NDArray[np.float32] = self.graph.initialisers[product.name].load()
        return np.ascontiguousarray(loaded.T)

    # 8 bits -------------------------------------------------------------------------------------------------------

    def _channels(self, product: _Product) -> tuple[str, str]:
        """Codes int8 [in, out] and scales float32 [out] of a matrix."""

        @cache
        def scales() -> NDArray[np.float32]:
            largest = np.abs(self._matrix(product)).max(axis=1)
            return np.asarray(np.maximum(largest / np.float32(127), np.float32(1e-12)), dtype=np.float32)

        def codes() -> NDArray[np.int8]:
            rounded = np.rint(self._matrix(product) / scales()[:, None])
            return np.ascontiguousarray(np.clip(rounded, -127, 127).astype(np.int8).T)

        name, steps = f"{product.module}.codes", f"{product.module}.scales"
        self.lazy[name] = LazyTensor(dtype=np.dtype(np.int8), shape=(product.n_in, product.n_out), make=codes)
        self.lazy[steps] = LazyTensor(dtype=np.dtype(np.float32), shape=(product.n_out,), make=scales)
        return name, steps

    def _dynamic(self, product: _Product) -> None:
        """One scale a token: the largest of its inputs becomes 127."""
        x = product.x
        scale = self._once(("scale", x), lambda: self._token_scale(x))
        codes = self._once(("codes", x), lambda: self._codes(x, scale))
        matrix, steps = self._channels(product)
        one = self._constant("one", np.array(1, dtype=np.float32))
        sums = self._integer(codes, matrix, one, steps, f"{product.y}/sums")
        self._op("Mul", [sums, scale], product.y)

    def _token_scale(self, x: str) -> str:
        size = self._op("Abs", [x], f"{x}/size")
        axis = self._constant("last", np.array([-1], dtype=np.int64))
        most = self._op("ReduceMax", [size, axis], f"{x}/most", keepdims=1)
        least = self._constant("least", np.array(1e-12, dtype=np.float32))
        share = self._constant("share", np.array(1 / 127, dtype=np.float32))
        return self._op("Mul", [self._op("Max", [most, least], f"{x}/some"), share], f"{x}/scale")

    def _codes(self, x: str, scale: str) -> str:
        level = self._op("Div", [x, scale], f"{x}/level")
        one = self._constant("one", np.array(1, dtype=np.float32))
        return self._op("QuantizeLinear", [level, one, self._middle()], f"{x}/codes")

    def _middle(self) -> str:
        return self._constant("middle", np.array(_MIDDLE, dtype=np.uint8))

    def _static(self, product: _Product) -> None:
        largest = self.largest[product.module]
        step = np.array(max(largest, 1e-12) / 127, dtype=np.float32)
        scale = self._constant(f"step.{float(step)!r}", step)
        x = product.x
        codes = self._once(
            ("codes", x, scale), lambda: self._op("QuantizeLinear", [x, scale, self._middle()], f"{x}/{scale}/codes")
        )
        matrix, steps = self._channels(product)
        self._integer(codes, matrix, scale, steps, product.y)

    def _integer(self, codes: str, matrix: str, scale: str, steps: str, output: str) -> str:
        return self._op("MatMulIntegerToFloat", [codes, matrix, scale, steps, self._middle()], output, domain=CONTRIB)

    # 4 bits -------------------------------------------------------------------------------------------------------

    def _bits(self, product: _Product, output: str, **tensors: LazyTensor) -> str:
        names = [f"{product.module}.{part}" for part in tensors]
        self.lazy.update(zip(names, tensors.values(), strict=True))
        return self._op(
            "MatMulNBits", [product.x, *names], output, domain=CONTRIB,
            K=product.n_in, N=product.n_out, bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def _blocks(self, product: _Product) -> None:
        fit = fit_of(self.weights, f"{product.module}.weight")
        assert fit is not None
        n_out, n_blocks = fit.scales.shape
        byte = np.dtype(np.uint8)
        self._bits(
            product,
            product.y,
            codes=LazyTensor(dtype=byte, shape=(n_out, n_blocks, BLOCK // 2), make=lambda: fit.packed),
            scales=LazyTensor(dtype=np.dtype(np.float32), shape=(n_out, n_blocks), make=lambda: fit.scales),
            zeros=LazyTensor(dtype=byte, shape=(n_out, -(-n_blocks // 2)), make=lambda: fit.packed_zeros),
        )

    def _grid(self, product: _Product) -> None:
        """Codes of the file about 8, and what is left of each block's offset, against the sum of the block's inputs."""
        n_blocks = product.n_in // BLOCK
        grid = cache(lambda: grid_of(self.weights, f"{product.module}.weight"))

        def part(which: int) -> NDArray[Any]:
            found = grid()
            assert found is not None
            return found.parts[which]

        codes = LazyTensor(dtype=np.dtype(np.uint8), shape=(product.n_out, n_blocks, BLOCK // 2), make=lambda: part(0))
        scales = LazyTensor(dtype=np.dtype(np.float32), shape=(product.n_out, n_blocks), make=lambda: part(1))
        offsets = LazyTensor(
            dtype=np.dtype(np.float16),
            shape=(n_blocks, product.n_out),
            make=lambda: np.ascontiguousarray(part(2).T).astype(np.float16),
        )
        main = self._bits(product, f"{product.y}/main", codes=codes, scales=scales)
        x = product.x
        sums = self._once(("sums", x), lambda: self._block_sums(x, n_blocks))
        name = f"{product.module}.offsets"
        self.lazy[name] = offsets
        wide = self._op("Cast", [name], f"{name}/wide", to=_FLOAT)
        self._op("Add", [main, self._op("MatMul", [sums, wide], f"{product.y}/offset")], product.y)

    def _block_sums(self, x: str, n_blocks: int) -> str:
        shape = self._constant(f"blocks.{n_blocks}", np.array([0, 0, n_blocks, BLOCK], dtype=np.int64))
        blocks = self._op("Reshape", [x, shape], f"{x}/blocks")
        axis = self._constant("last", np.array([-1], dtype=np.int64))
        return self._op("ReduceSum", [blocks, axis], f"{x}/block_sums", keepdims=0)

    def _embedding(self, node: Any) -> None:
        table = self.graph.initialisers[EMBED]
        n_rows, width = table.shape
        n_blocks = -(-width // BLOCK)
        both = cache(lambda: quantise(table.load()))
        self.lazy["embed.codes"] = LazyTensor(
            dtype=np.dtype(np.uint8), shape=(n_rows, n_blocks, BLOCK), make=lambda: both()[0]
        )
        self.lazy["embed.scales"] = LazyTensor(
            dtype=np.dtype(np.float32), shape=(n_rows, n_blocks, 1), make=lambda: both()[1][:, :, None]
        )
        ids, y = node.input[1], node.output[0]
        codes = self._op("Gather", ["embed.codes", ids], f"{y}/codes", axis=0)
        scales = self._op("Gather", ["embed.scales", ids], f"{y}/scales", axis=0)
        level = self._op("Cast", [codes], f"{y}/level", to=_FLOAT)
        zero = self._constant("embed.zero", np.array(_MIDDLE, dtype=np.float32))
        values = self._op("Mul", [self._op("Sub", [level, zero], f"{y}/signed"), scales], f"{y}/values")
        shape = self._constant("embed.shape", np.array([0, 0, n_blocks * BLOCK], dtype=np.int64))
        flat = self._op("Reshape", [values, shape], y if n_blocks * BLOCK == width else f"{y}/padded")
        if flat != y:
            cut = self._constant("embed.cut", np.array([width], dtype=np.int64))
            zero_at = self._constant("embed.from", np.array([0], dtype=np.int64))
            axis = self._constant("last", np.array([-1], dtype=np.int64))
            self._op("Slice", [flat, zero_at, cut, axis], y)
