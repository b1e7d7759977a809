"""Tensors: what a contract says of inputs and outputs, held against what the runtime says of the loaded plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import EngineRefused

if TYPE_CHECKING:
    from workbench.engine.backends.protocol import Session
    from workbench.engine.contract import Contract, TensorRow

_REBUILD = "Build it again with `workbench build`."


def check_tensors(session: Session, contract: Contract) -> None:
    """Refuse a contract that says other names, dtypes or sizes than the runtime.

    Raises
    ------
    EngineRefused
        With the tensor, what the contract says, and what the runtime says.
    """
    for kind, rows, live in (
        ("inputs", contract.inputs, session.inputs),
        ("outputs", contract.outputs, session.outputs),
    ):
        names = tuple(row.name for row in rows)
        if set(names) != set(live):
            raise EngineRefused(f"{kind} of the engine must be {', '.join(names)}", ", ".join(live), _REBUILD)
        for row in rows:
            _check_tensor(row, *session.tensors[row.name])


def _check_tensor(row: TensorRow, dtype: str, sizes: tuple[int | None, ...]) -> None:
    """Compare one tensor; an axis whose size is fixed stands in the contract as that number."""
    if row.dtype != dtype:
        raise EngineRefused(f"{row.name} of the engine must be {row.dtype}", dtype, _REBUILD)
    if len(row.axes) != len(sizes) or any(
        axis != str(size) if size is not None else axis.isdecimal() for axis, size in zip(row.axes, sizes, strict=True)
    ):
        live = ", ".join("any" if size is None else str(size) for size in sizes)
        raise EngineRefused(f"{row.name} of the engine must be [{', '.join(row.axes)}]", f"[{live}]", _REBUILD)
