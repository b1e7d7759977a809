"""One build by `trtllm-build` itself, from an unedited source tree, watched from outside; runs in its own process."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.engine.trtllm.build_command import BuildOptions, build_arguments
from workbench.engine.trtllm.check.bindings import load_tensorrt
from workbench.engine.trtllm.check.evaluating import evaluate
from workbench.engine.trtllm.check.stubs import COMPILED, install_stubs
from workbench.engine.trtllm.engine_config import read_engine_config
from workbench.engine.trtllm.inputs import prepare_inputs, real_rows

SEEN_FILE, OUTPUTS_FILE = "seen.json", "outputs.npz"
N_LAYERS_ASKED = 3
VARIANTS: tuple[dict[str, Any], ...] = (  # every kind of command that a recipe can ask for
    {"layout": "packed"},
    {"layout": "padded"},
    {"layout": "packed", "cache": "paged"},
    {"layout": "packed", "cache": "continuous"},
    {"layout": "plain", "cache": "continuous"},
    {"layout": "packed", "precision": "bf16", "gemm_plugin": True},
    {"layout": "packed", "precision": "fp8"},
    {"layout": "packed", "precision": "fp8", "gemm_plugin": True},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRecipe:
    """The recipe of the check's engines."""

    precision: str = "fp16"
    taps: tuple[str, ...] = ("final_norm",)
    max_tokens: int = 128


def main() -> None:
    """Build as the command line says and leave what was seen in `seen.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("rtx", "trt"), required=True)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--input-timing-cache", type=Path)
    parser.add_argument("--prompts-file", type=Path, help="with rtx: compute the network on these prompts")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ["TRT_LLM_NO_LIB_INIT"] = "1"  # TensorRT-LLM's own switch: no plugin library, no MPI
    tensorrt = load_tensorrt(given.backend, given.libraries)
    seen: dict[str, Any] = {"stand_ins": install_stubs()}
    sys.path.insert(0, str(given.tree))
    seen["version"] = importlib.import_module("tensorrt_llm").__version__
    network = trace(given, seen)
    if given.prompts_file:
        compute(tensorrt, network, given)
    seen["stand_ins"] = sorted(set(seen["stand_ins"]))
    (given.out / SEEN_FILE).write_text(json.dumps(seen, indent=1, default=str), "utf-8")


def trace(given: argparse.Namespace, seen: dict[str, Any]) -> Any:
    """Run `trtllm-build`, note the network that it hands to the builder, and give that network, weights included."""
    build = importlib.import_module("tensorrt_llm.commands.build")
    builder = importlib.import_module("tensorrt_llm.builder").Builder
    plain, kept = builder.build_engine, []

    def watched(self: Any, network: Any, *rest: Any, **options: Any) -> Any:
        seen.update(describe(network.trt_network), strongly_typed=network.strongly_typed)
        kept.append(network)
        if given.backend == "rtx":
            self._trt_builder = _Unbuilt(self.trt_builder)
        start = time.monotonic()
        plan = plain(self, network, *rest, **options)
        seen.update(build_s=round(time.monotonic() - start, 2), plan_bytes=getattr(plan, "nbytes", None))
        return plan

    builder.build_engine = watched
    if given.backend == "rtx":
        _without_gpu(build)
    seen["inputs_asked"] = {layout: ask_inputs(layout, given.max_tokens) for layout in ("packed", "padded", "plain")}
    seen["commands_parsed"] = [_parses(build, _arguments(given, seen, **variant)) for variant in VARIANTS]
    extra = {"--log_level": "warning", "--cluster_key": "H100-SXM", "--profiling_verbosity": "detailed"}
    cache = {"--input_timing_cache": given.input_timing_cache, "--output_timing_cache": given.out / "timing.cache"}
    extra |= {name: str(value) for name, value in cache.items() if value}
    command = _arguments(given, seen, layout="plain") + tuple(word for pair in extra.items() for word in pair)
    sys.argv = list(command)
    seen["command"] = list(command[:1]) + [word for word in command[5:] if not word.startswith("/")]
    build.main()
    if given.backend == "rtx":
        (given.out / "rank0.engine").unlink(missing_ok=True)
    return kept[-1]


class _Unbuilt:
    """The builder of a machine where nothing could be built for a card: all but the last step."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def build_serialized_network(self, *_: Any) -> memoryview:
        return memoryview(b"")


def compute(tensorrt: Any, network: Any, given: argparse.Namespace) -> None:
    """Compute the network's outputs on the CPU, prompts as the raw runtime would hand them over."""
    part = read_engine_config(given.out)
    with np.load(given.prompts_file) as data:
        table, lengths = data["input_ids"], data["lengths"]
    rows: dict[str, list[Any]] = {}
    for first in range(0, len(lengths), part.max_batch_size):
        sizes = lengths[first : first + part.max_batch_size]
        real = np.arange(table.shape[1]) < sizes[:, None]
        feeds = prepare_inputs(table[first : first + part.max_batch_size][real], sizes, part=part)
        for name, output in evaluate(tensorrt, network.trt_network, feeds).items():
            array = output.astype(np.float32)
            rows.setdefault(name, []).append(real_rows(array, sizes, part=part) if array.ndim > 2 else array)
    outputs: dict[str, Any] = {name: np.concatenate(parts) for name, parts in rows.items()}
    np.savez(given.out / OUTPUTS_FILE, **outputs)


def ask_inputs(layout: str, max_tokens: int) -> list[dict[str, Any]]:
    """Let upstream declare the inputs of an engine without a cache, which needs none of its plugins."""
    builder = importlib.import_module("tensorrt_llm.builder").Builder()
    mixin = importlib.import_module("tensorrt_llm.models.generation_mixin").GenerationMixin()
    network = builder.create_network()
    known = {
        "max_batch_size": 2,
        "max_beam_width": 1,
        "max_input_len": max_tokens,
        "max_seq_len": max_tokens,
        "max_num_tokens": 2 * max_tokens,
        "hidden_size": 64,
        "num_kv_heads": 2,
        "head_size": 16,
        "num_layers": N_LAYERS_ASKED,
        "kv_dtype": importlib.import_module("tensorrt").float16,
        "kv_cache_type": importlib.import_module(COMPILED).KVCacheType.DISABLED,
        "remove_input_padding": layout == "packed",
        "use_gpt_attention_plugin": layout != "plain",
        "num_heads": 4,
        "dtype": importlib.import_module("tensorrt").float16,
    }
    wanted = inspect.signature(mixin.prepare_basic_inputs).parameters
    with importlib.import_module("tensorrt_llm.network").net_guard(network):
        mixin.prepare_basic_inputs(**{name: value for name, value in known.items() if name in wanted})
    rows: list[dict[str, Any]] = describe(network.trt_network)["inputs"]
    return rows


def _arguments(
    given: argparse.Namespace, seen: dict[str, Any], *, precision: str = "fp16", **options: Any
) -> tuple[str, ...]:
    chosen = BuildOptions(
        version=seen["version"],
        checkpoint_dir=given.checkpoint,
        output_dir=given.out,
        prompts_per_pass=given.prompts,
        **options,
    )
    return build_arguments(CheckRecipe(precision=precision, max_tokens=given.max_tokens), chosen)


def _parses(build: Any, command: tuple[str, ...]) -> str:
    """Let upstream parse a command; it exits with a message where a flag or value does not exist."""
    sys.argv = list(command)
    parser = build.parse_arguments()
    if isinstance(parser, argparse.ArgumentParser):  # some versions parse at once
        parser.parse_args()
    return " ".join(command[5:])


def _without_gpu(build: Any) -> None:
    torch = importlib.import_module("torch")
    torch.cuda.set_device, torch.cuda.device_count = (lambda *_: None), (lambda: 1)
    build.infer_cluster_config = lambda *_, **__: {}


def describe(network: Any) -> dict[str, Any]:
    """List inputs, outputs and kinds of layers of a TensorRT network."""
    kinds = Counter(str(network.get_layer(i).type).rsplit(".", 1)[-1] for i in range(network.num_layers))

    def rows(count: int, get: Any) -> list[dict[str, Any]]:
        tensors = [get(i) for i in range(count)]
        return [{"name": t.name, "dtype": str(t.dtype).rsplit(".", 1)[-1], "shape": list(t.shape)} for t in tensors]

    return {
        "inputs": rows(network.num_inputs, network.get_input),
        "outputs": rows(network.num_outputs, network.get_output),
        "layers": network.num_layers,
        "kinds": dict(kinds),
        "plugin_layers": sum(count for kind, count in kinds.items() if kind.startswith("PLUGIN")),
    }


if __name__ == "__main__":
    main()
