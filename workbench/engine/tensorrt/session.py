"""A loaded plan: preallocated buffers, two slots, a stream of its own, results delivered while the next pass computes.

A slot owns what one pass needs: page-locked host buffers, buffers of the card, two events. While slot A's rows travel
to the host on the copy stream, slot B computes on the compute stream. Nothing is allocated after a slot's first use,
and the compute stream is never waited for by the host.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from workbench.engine.tensorrt.api import last_errors, make_logger
from workbench.errors import EngineError, EngineRefused
from workbench.graph.kinds import narrow_dtype

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from workbench.engine.backends.protocol import Tensor
    from workbench.engine.tensorrt.api import Api
    from workbench.engine.tensorrt.driver import Driver
    from workbench.engine.tensorrt.limits import Limits

SLOTS = 2
_GRAPHS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One input or output: its name, dtype, and the most values that a pass can hold."""

    name: str
    dtype: np.dtype[Any]
    most: int


@dataclass(kw_only=True, slots=True, eq=False)
class Slot:
    """Buffers and events of one pass in flight."""

    card: dict[str, int]
    host: dict[str, NDArray[np.uint8]]
    computed: int
    delivered: int
    busy: bool = False
    graphs: dict[tuple[tuple[int, ...], ...], tuple[Any, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pending:
    """A pass that was launched.

    Parameters
    ----------
    session : TensorRTSession
        That launched it.
    slot : Slot
        Where its rows arrive.
    shapes : mapping of str to tuple of int
        Of each output.
    """

    session: TensorRTSession
    slot: Slot
    shapes: Mapping[str, tuple[int, ...]]

    def result(self, *, copy: bool = True) -> dict[str, NDArray[Any]]:
        """Wait for the rows.

        Parameters
        ----------
        copy : bool
            Without, the arrays are views that hold until the slot is used again, two passes later.

        Returns
        -------
        dict of tap name to array
            In the dtype of the engine.
        """
        return self.session.collect(self, copy=copy)


class TensorRTSession:
    """A plan that runs.

    Parameters
    ----------
    api : Api
        TensorRT.
    driver : Driver
        CUDA.
    plan : bytes-like
        The serialised engine; its hash was checked before.
    limits : Limits
        Largest pass, from which every buffer is sized.
    cuda_graph : bool
        Whether passes of a shape seen before are replayed as a captured graph.
    resident : collection of str
        Outputs that stay on the card, as a key-value cache does; `run` does not give them.

    Raises
    ------
    EngineRefused
        If TensorRT cannot read the plan.
    """

    def __init__(
        self,
        api: Api,
        driver: Driver,
        plan: Any,
        limits: Limits,
        *,
        cuda_graph: bool = False,
        resident: Collection[str] = (),
    ) -> None:
        self._api, self._driver, self._limits, self._cuda_graph = api, driver, limits, cuda_graph
        driver.enter()
        lines: list[str] = []
        self._lines = lines
        self._logger = make_logger(api, lines)
        self._runtime = api.trt.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineRefused(
                "TensorRT must be able to read the plan", last_errors(lines), "Build it again with `workbench build`."
            )
        self.engine = engine
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        is_input = {name: engine.get_tensor_mode(name) == api.trt.TensorIOMode.INPUT for name in names}
        self.inputs: Sequence[str] = tuple(name for name in names if is_input[name])
        self.outputs: Sequence[str] = tuple(name for name in names if not is_input[name])
        self._delivered = tuple(name for name in self.outputs if name not in resident)
        self.tensors: Mapping[str, Tensor] = {name: self._tensor(name) for name in names}
        self._compute, self._copy = driver.stream(), driver.stream()
        self._contexts = [self._make_context(i) for i in range(engine.num_optimization_profiles)]
        self.scratch_bytes, sizes = self._needs()
        self._ports = {name: Port(name=name, dtype=self._dtype(name), most=sizes[name]) for name in names}
        self._scratch = driver.allocate(self.scratch_bytes)
        for context in self._contexts:
            self._give_scratch(context)
        self._slots: list[Slot] = []
        self._turn = itertools.cycle(range(SLOTS))

    @property
    def buffer_bytes(self) -> int:
        """Memory of the card for what goes in and out, both slots together."""
        return SLOTS * sum(port.most * port.dtype.itemsize for port in self._ports.values())

    # Setting up ---------------------------------------------------------------------------------------------------

    def _dtype(self, name: str) -> np.dtype[Any]:
        return narrow_dtype(self._api.dtype_name(self.engine.get_tensor_dtype(name)))

    def _tensor(self, name: str) -> Tensor:
        shape = self.engine.get_tensor_shape(name)
        return self._dtype(name).name, tuple(size if size >= 0 else None for size in map(int, shape))

    def _make_context(self, profile: int) -> Any:
        strategy = self._api.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self.engine.create_execution_context(strategy)
        if context is None:
            raise EngineError("TensorRT must give an execution context", "none", "Free some memory of the card.")
        context.set_optimization_profile_async(profile, self._compute)
        return context

    def _profile_of(self, shape: tuple[int, ...]) -> int:
        """The first profile that holds input ids of a shape; the last where none does, which then refuses."""
        for index in range(len(self._contexts)):
            largest = self.engine.get_tensor_profile_shape("input_ids", index)[2]
            if all(size <= most for size, most in zip(shape, largest, strict=True)):
                return index
        return len(self._contexts) - 1

    def _needs(self) -> tuple[int, dict[str, int]]:
        """Memory for any shape of the profile, and the most values of each input and output of a real pass.

        TensorRT can also say what the shapes of the moment need, but then lays its buffers out for them: a pass of
        other shapes reads and writes outside. So the scratch memory is that of the largest shape in each dimension.
        """
        sizes = dict.fromkeys((*self.inputs, *self.outputs), 0)
        for prompts, tokens in self._limits.widest():
            profile = self._profile_of((prompts, tokens))
            context = self._contexts[profile]
            for name in self.inputs:
                context.set_input_shape(name, self._widest_shape(name, prompts, tokens, profile))
            for name in sizes:
                sizes[name] = max(sizes[name], prod(context.get_tensor_shape(name)))
        return int(self.engine.device_memory_size_v2), sizes

    def _widest_shape(self, name: str, prompts: int, tokens: int, profile: int) -> tuple[int, ...]:
        if name == "input_ids":
            return prompts, tokens
        shape = tuple(self.engine.get_tensor_shape(name))
        largest = tuple(self.engine.get_tensor_profile_shape(name, profile)[2])
        leading = min(prompts * tokens if largest[0] > self._limits.prompts_per_pass else prompts, largest[0])
        return leading, *shape[1:]

    def _give_scratch(self, context: Any) -> None:
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(self._scratch, self.scratch_bytes)
        else:
            context.device_memory = self._scratch

    def _slot(self) -> Slot:
        index = next(self._turn)
        if index == len(self._slots):
            driver = self._driver
            sizes = {name: port.most * port.dtype.itemsize for name, port in self._ports.items()}
            self._slots.append(
                Slot(
                    card={name: driver.allocate(size) for name, size in sizes.items()},
                    host={name: driver.pin(sizes[name]) for name in (*self.inputs, *self._delivered)},
                    computed=driver.event(),
                    delivered=driver.event(),
                )
            )
        slot = self._slots[index]
        if slot.busy:
            self._driver.synchronise(slot.delivered)
        slot.busy = True
        return slot

    # Passes -------------------------------------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one pass and wait for its rows."""
        return self.submit(feeds).result()

    def submit(self, feeds: Mapping[str, NDArray[Any]]) -> Pending:
        """Launch a pass; at most two may be in flight."""
        self._driver.enter()
        slot = self._slot()
        shapes = {name: tuple(feeds[name].shape) for name in self.inputs}
        for name in self.inputs:
            staged = self._staged(slot, name, feeds[name])
            self._driver.to_card(slot.card[name], staged, self._compute)
        outputs = self._launch(slot, shapes)
        self._driver.record(slot.computed, self._compute)
        self._driver.wait_on(self._copy, slot.computed)
        for name in self._delivered:
            size = prod(outputs[name]) * self._ports[name].dtype.itemsize
            self._driver.to_host(slot.host[name][:size], slot.card[name], self._copy)
        self._driver.record(slot.delivered, self._copy)
        return Pending(session=self, slot=slot, shapes=outputs)

    def _staged(self, slot: Slot, name: str, feed: NDArray[Any]) -> NDArray[Any]:
        port = self._ports[name]
        if feed.size > port.most:
            raise EngineError(
                f"{name} may hold {port.most} values a pass", str(feed.size), "Use passes within the contract's limits."
            )
        staged: NDArray[Any] = slot.host[name][: feed.size * port.dtype.itemsize].view(port.dtype)
        staged[:] = feed.reshape(-1)
        return staged

    def _launch(self, slot: Slot, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        key = tuple(shapes[name] for name in self.inputs)
        if key in slot.graphs:
            context, graph = slot.graphs[key]
            self._driver.launch(graph, self._compute)
            return self._output_shapes(context)
        profile = self._profile_of(shapes["input_ids"])
        context = self._contexts[profile]
        self._bind(context, slot, shapes)
        self._enqueue(context)
        outputs = self._output_shapes(context)
        if self._cuda_graph and len(slot.graphs) < _GRAPHS:
            slot.graphs[key] = self._capture(slot, shapes, profile)
        return outputs

    def _bind(self, context: Any, slot: Slot, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name in self.inputs:
            if not context.set_input_shape(name, shapes[name]):
                raise EngineError(
                    f"{name} must have a shape within the profile of the engine",
                    str(shapes[name]),
                    "Use passes within the contract's limits.",
                )
        for name in (*self.inputs, *self.outputs):
            context.set_tensor_address(name, slot.card[name])

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._compute):
            raise EngineError("TensorRT must accept the pass", last_errors(self._lines), "Build the engine again.")

    def _output_shapes(self, context: Any) -> dict[str, tuple[int, ...]]:
        return {name: tuple(context.get_tensor_shape(name)) for name in self.outputs}

    def _capture(self, slot: Slot, shapes: Mapping[str, tuple[int, ...]], profile: int) -> tuple[Any, int]:
        """Record the enqueue of one shape, with a context of its own and one enqueue before."""
        context = self._make_context(profile)
        self._bind(context, slot, shapes)
        self._give_scratch(context)
        self._enqueue(context)
        self._driver.begin_capture(self._compute)
        self._enqueue(context)
        return context, self._driver.end_capture(self._compute)

    def collect(self, pending: Pending, *, copy: bool) -> dict[str, NDArray[Any]]:
        """Wait for a pass and give its rows."""
        self._driver.synchronise(pending.slot.delivered)
        pending.slot.busy = False
        found = {}
        for name in self._delivered:
            dtype, shape = self._ports[name].dtype, pending.shapes[name]
            flat = pending.slot.host[name][: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            found[name] = flat.copy() if copy else flat
        return found

    def close(self) -> None:
        """Give all memory back."""
        for slot in self._slots:
            for _context, graph in slot.graphs.values():
                self._driver.drop(graph)
            for address in slot.card.values():
                self._driver.free(address)
            for array in slot.host.values():
                self._driver.unpin(array)
        self._slots = []
        if self._scratch:
            self._driver.free(self._scratch)
            self._scratch = 0
        self._contexts = []
