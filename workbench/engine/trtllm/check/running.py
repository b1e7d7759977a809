"""Both engines on the card: logits bit by bit, the tap against a reference."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.engine.trtllm.check.bindings import load_tensorrt
from workbench.engine.trtllm.engine_config import TensorRtLlmPart, read_engine_config
from workbench.engine.trtllm.finder import TAP_OUTPUT
from workbench.engine.trtllm.inputs import check_inputs, output_shapes, prepare_inputs, real_rows
from workbench.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from workbench.engine.trtllm.check.judging import Verdict

Arrays = dict[str, "NDArray[Any]"]


class CardEngine:
    """One engine, run synchronously with arrays of the host.

    Parameters
    ----------
    tensorrt : module
        The bindings.
    folder : Path
        Of the engine.
    """

    def __init__(self, tensorrt: Any, folder: Path) -> None:
        self.torch: Any = importlib.import_module("torch")  # for device memory and a stream alone
        self.part: TensorRtLlmPart = read_engine_config(folder)
        runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
        self.engine = runtime.deserialize_cuda_engine((folder / "rank0.engine").read_bytes())
        if self.engine is None:
            raise EngineError("the plan must fit this card and this TensorRT", str(folder), "Build it again here.")
        self.runtime, self.context = runtime, self.engine.create_execution_context()
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        inputs = tensorrt.TensorIOMode.INPUT
        self.outputs = tuple(name for name in names if self.engine.get_tensor_mode(name) != inputs)

    def run(self, ids: NDArray[np.int32], lengths: NDArray[Any]) -> Arrays:
        """Give every output of one pass.

        Parameters
        ----------
        ids, lengths : int32 [token], int [prompt]
            The prompts, one after another.
        """
        torch = self.torch
        feeds = prepare_inputs(ids, lengths, part=self.part)
        check_inputs(feeds, ids, lengths, part=self.part)
        held = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
        shapes = output_shapes(lengths, part=self.part)
        dtypes = {"logits": self.part.logits_dtype, TAP_OUTPUT: self.part.dtype}
        for name, tensor in held.items():
            self.context.set_input_shape(name, tuple(tensor.shape))
            self.context.set_tensor_address(name, tensor.data_ptr())
        results = {n: torch.full(shapes[n], float("nan"), dtype=getattr(torch, dtypes[n])).cuda() for n in self.outputs}
        for name, tensor in results.items():
            if tuple(self.context.get_tensor_shape(name)) != shapes[name]:
                raise EngineError(
                    f"{name} must be {shapes[name]}", str(self.context.get_tensor_shape(name)), "Report it."
                )
            self.context.set_tensor_address(name, tensor.data_ptr())
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        if not self.context.execute_async_v3(stream.cuda_stream):
            raise EngineError("the pass must be enqueued", "a refusal", "See TensorRT's log above.")
        stream.synchronize()
        return {name: tensor.float().cpu().numpy() for name, tensor in results.items()}


def run_on_card(plain: Path, patched: Path, reference: Path, libraries: Path | None) -> tuple[list[Verdict], Arrays]:
    """Run both engines over prompts, together and each alone.

    Parameters
    ----------
    plain, patched : Path
        Folders of the two engines.
    reference : Path
        `.npz` with `input_ids` [prompt, column] and `lengths` [prompt].
    libraries : Path, optional
        Folder of TensorRT's libraries.

    Returns
    -------
    verdicts, outputs
        What was checked, whether it holds, and figures; and the patched engine's `final_hidden_states` [token, d_model]
        of the prompts, each alone.
    """
    tensorrt = load_tensorrt("trt", libraries)
    engines = {"plain": CardEngine(tensorrt, plain), "patched": CardEngine(tensorrt, patched)}
    part = engines["patched"].part
    with np.load(reference) as data:
        table, lengths = data["input_ids"], data["lengths"]
    plans = {name: (folder / "rank0.engine").read_bytes() for name, folder in (("plain", plain), ("patched", patched))}
    named = [TAP_OUTPUT.encode() in plan for plan in plans.values()]
    every = list(range(len(lengths)))
    batches = [every[i : i + part.max_batch_size] for i in range(0, len(every), part.max_batch_size)]
    batches += [[i] for i in every]
    equal, finite, repeats, alone = True, True, True, []
    for batch in batches:
        sizes = lengths[batch]
        real = np.arange(table.shape[1]) < sizes[:, None]
        ids = np.ascontiguousarray(table[batch][real], np.int32)
        outs = {name: engine.run(ids, sizes) for name, engine in engines.items()}
        again = engines["patched"].run(ids, sizes)
        equal &= outs["plain"]["logits"].tobytes() == outs["patched"]["logits"].tobytes()
        repeats &= all(again[name].tobytes() == array.tobytes() for name, array in outs["patched"].items())
        finite &= bool(np.isfinite(outs["patched"][TAP_OUTPUT]).all())
        alone.append(real_rows(outs["patched"][TAP_OUTPUT], sizes, part=part))
    return [
        ("logits with and without the tap are bit-equal", equal, f"{len(batches)} batches"),
        (
            "the patched plan alone names the tap",
            named == [False, True],
            "in plain letters, which a contract looks for",
        ),
        ("padded rows of the tap are finite too", finite, f"{len(batches)} batches"),
        ("a repeated pass gives the same bits", repeats, f"TensorRT {tensorrt.__version__}"),
    ], {TAP_OUTPUT: np.concatenate(alone[-len(every) :])}
