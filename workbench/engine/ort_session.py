"""Sessions of ONNX Runtime on the CPU: of an engine's plan, and of graphs in memory for reference runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engine.plan_files import fill_places
from workbench.engine.processor import thread_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.engine.backends.protocol import Tensor
    from workbench.graph import Graph

_DTYPES = {"float": "float32", "double": "float64"}  # ONNX Runtime's names, where they are not ours


def session_of(graph: Graph, *, optimise: bool = True) -> OrtSession:
    """Open a graph that lies in memory, for reference runs."""
    arrays = {name: tensor.load() for name, tensor in graph.initialisers.items()}
    fill_places(graph.model, {name: (0, array.nbytes) for name, array in arrays.items()})
    return OrtSession(graph.model.SerializeToString(deterministic=True), arrays, optimise=optimise)


class OrtSession:
    """A loaded graph; one pass a call.

    Parameters
    ----------
    model : bytes
        ONNX model with external initialisers.
    arrays : mapping of str to array
        Every external initialiser; kept alive as long as the session, which reads them in place.
    optimise : bool
        Whether ONNX Runtime may fuse operators.
    """

    def __init__(self, model: bytes, arrays: Mapping[str, NDArray[Any]], *, optimise: bool = True) -> None:
        import onnxruntime as ort

        self._arrays = arrays
        options = ort.SessionOptions()
        options.intra_op_num_threads = thread_count()
        options.log_severity_level = 3
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        if arrays:
            values = [_value(array) for array in arrays.values()]
            options.add_external_initializers(list(arrays), values)
            self._values = values
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs: Sequence[str] = tuple(value.name for value in self._session.get_inputs())
        self.outputs: Sequence[str] = tuple(value.name for value in self._session.get_outputs())
        ports = (*self._session.get_inputs(), *self._session.get_outputs())
        self.tensors: Mapping[str, Tensor] = {port.name: _tensor(port) for port in ports}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one pass.

        Parameters
        ----------
        feeds : mapping of str to array
            From `make_feeds`.

        Returns
        -------
        dict of tap name to array
            Shapes as in the contract's output table.
        """
        return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))


def _tensor(port: Any) -> Tensor:
    name = str(port.type).removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name), tuple(size if isinstance(size, int) else None for size in port.shape)


def _value(array: NDArray[Any]) -> Any:
    """Wrap an array where it lies; the narrow floats of ml_dtypes are no types of NumPy's own."""
    import onnxruntime as ort

    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    from onnx.helper import np_dtype_to_tensor_dtype

    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, np_dtype_to_tensor_dtype(array.dtype))
