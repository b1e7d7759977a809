"""A compiled OpenVINO model; its input arrays are read where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from workbench.engine.backends.protocol import Tensor


class OpenVinoSession:
    """A loaded model; one pass a call.

    Parameters
    ----------
    model : bytes
        The model's XML.
    weights : uint8 [byte]
        Its constants, kept alive as long as the session.
    settings : mapping of str to str
        Properties of the CPU plugin.
    """

    def __init__(self, model: bytes, weights: NDArray[np.uint8], settings: Mapping[str, str]) -> None:
        import openvino as ov

        self._weights = weights
        core = ov.Core()
        read = core.read_model(model, ov.Tensor(weights))
        self._compiled = core.compile_model(read, "CPU", dict(settings))
        self._request = self._compiled.create_infer_request()
        self.inputs: Sequence[str] = tuple(port.get_any_name() for port in self._compiled.inputs)
        self.outputs: Sequence[str] = tuple(port.get_any_name() for port in self._compiled.outputs)
        ports = (*self._compiled.inputs, *self._compiled.outputs)
        self.tensors: Mapping[str, Tensor] = {port.get_any_name(): _tensor(port) for port in ports}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one pass.

        Parameters
        ----------
        feeds : mapping of str to array
            From `make_feeds`.

        Returns
        -------
        dict of tap name to float32 array
            Shapes as in the contract's output table.
        """
        self._request.infer(dict(feeds))
        return {name: np.array(self._request.get_tensor(name).data, dtype=np.float32) for name in self.outputs}


def _tensor(port: Any) -> Tensor:
    sizes = tuple(None if size.is_dynamic else int(size.get_length()) for size in port.get_partial_shape())
    return np.dtype(port.get_element_type().to_dtype()).name, sizes
