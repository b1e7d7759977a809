"""The contract's part of an engine of TensorRT-LLM, the build command and the executor's settings."""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from workbench.engine.trtllm.build_command import BuildOptions, build_arguments, quantize_arguments, shell_text
from workbench.engine.trtllm.engine_config import TensorRtLlmPart, read_engine_config
from workbench.engine.trtllm.executor import executor_configs, executor_settings, prompt_rows
from workbench.engine.trtllm.releases import has, version_order
from workbench.errors import ContractError, EngineError, EngineRefused

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "version": "0.16.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 500000.0,
        "rotary_scaling": None,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
        "some_later_field": 1,
    },
    "build_config": {
        "max_input_len": 128,
        "max_seq_len": 128,
        "max_batch_size": 8,
        "max_beam_width": 1,
        "max_num_tokens": 512,
        "opt_num_tokens": 512,
        "kv_cache_type": "DISABLED",
        "gather_context_logits": False,
        "strongly_typed": True,
        "speculative_decoding_mode": 1,
        "plugin_config": {
            "gpt_attention_plugin": "auto",
            "gemm_plugin": None,
            "remove_input_padding": True,
            "context_fmha": True,
        },
    },
}


def write_config(folder: Path, **changes: Any) -> Path:
    """Write a config whose dotted fields are changed; None removes one."""
    config = copy.deepcopy(CONFIG)
    for dotted, value in changes.items():
        *path, name = dotted.split("__")
        part = config
        for key in path:
            part = part[key]
        if value is None:
            del part[name]
        else:
            part[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_part(folder: Path, **changes: Any) -> TensorRtLlmPart:
    return read_engine_config(write_config(folder, **changes))


PLUGINS = "build_config__plugin_config__"


def test_the_part_says_what_the_engine_accepts(tmp_path: Path) -> None:
    part = make_part(tmp_path)
    assert (part.layout, part.kv_cache_type, part.max_num_tokens, part.quant_algo) == ("packed", "DISABLED", 512, "FP8")
    assert (part.n_layers, part.d_model, part.d_vocab, part.dtype) == (3, 64, 1000, "bfloat16")
    assert "after the final norm and before the head" in part.norm_point
    assert TensorRtLlmPart.model_validate_json(part.model_dump_json()) == part


def test_layout_follows_the_plugins(tmp_path: Path) -> None:
    assert make_part(tmp_path, **{PLUGINS + "remove_input_padding": False}).layout == "padded"
    plain = {PLUGINS + "gpt_attention_plugin": None, "pretrained_config__rope_table_in_checkpoint": True}
    part = make_part(tmp_path, **plain)
    assert (part.layout, part.max_num_tokens) == ("plain", None)


def test_an_older_config_without_a_cache_type_is_judged_by_its_plugins(tmp_path: Path) -> None:
    older = {"version": "0.12.0", "build_config__kv_cache_type": None}
    assert make_part(tmp_path, **older, **{PLUGINS + "paged_kv_cache": True}).kv_cache_type == "PAGED"
    assert make_part(tmp_path, **older).kv_cache_type == "CONTINUOUS"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrained_config__architecture": "MambaForCausalLM"}, "dense decoder.*MambaForCausalLM"),
        ({"pretrained_config__expose_final_hidden": False}, "expose_final_hidden"),
        ({"pretrained_config__mapping": {"pp_size": 2}}, "pp_size and cp_size must be 1; got 2"),
        ({"build_config__max_beam_width": 4}, "max_beam_width must be 1; got 4"),
        ({"build_config__gather_context_logits": True}, "last_token_ids"),
        ({"build_config__weight_streaming": True}, "weight_streaming"),
        ({"build_config__use_strip_plan": True}, "hold its weights"),
        ({"build_config__max_draft_len": 3}, "max_draft_len 3"),
        ({"build_config__max_prompt_embedding_table_size": 8}, "prompt tuning"),
        ({PLUGINS + "lora_plugin": "auto"}, "lora_plugin"),
        ({PLUGINS + "manage_weights": True}, "plan must hold its weights; got manage_weights"),
        ({"build_config__max_input_len": 129}, "at most max_seq_len, 128; got 129"),
        ({PLUGINS + "gpt_attention_plugin": None}, "rotary base is ignored.*500000"),
        ({"build_config__kv_cache_type": "SPARSE"}, "kv_cache_type"),
        ({"build_config__max_batch_size": 0}, "max_batch_size"),
        ({"pretrained_config__hidden_size": None}, "hidden_size"),
        ({"pretrained_config__dtype": "int8"}, "dtype"),
        ({"build_config": None}, "build_config"),
    ],
)
def test_an_engine_that_cannot_serve_extraction_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match=message):
        make_part(tmp_path, **changes)


def test_a_wrong_version_or_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="must read like"):
        make_part(tmp_path, version="latest")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(EngineRefused, match=r"config\.json must be"):
        read_engine_config(tmp_path)
    with pytest.raises(EngineRefused, match="No such file"):
        read_engine_config(tmp_path / "nowhere")


def test_versions_sort_as_versions_do() -> None:
    order = ["0.9.0", "0.12.0.dev2024072300", "0.12.0", "0.15.0.dev2024110500", "0.15.0", "1.0.0rc4", "1.0.0", "1.2.1"]
    assert [version_order(one) for one in order] == sorted(version_order(one) for one in order)
    assert has("0.15.0", "0.15.0.dev2024110500")
    assert not has("0.15.0.dev2024101500", "0.15.0.dev2024110500")


@dataclass(frozen=True)
class Recipe:
    precision: str = "bf16"
    taps: tuple[str, ...] = ("final_norm",)
    max_tokens: int = 128


OPTIONS = BuildOptions(version="0.16.0", checkpoint_dir="ckpt", output_dir="my engine", prompts_per_pass=256)


def flags(recipe: Recipe, options: BuildOptions) -> dict[str, str]:
    program, *words = build_arguments(recipe, options)
    assert program == "trtllm-build"
    assert all(word.startswith("--") for word in words[::2])
    return dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))


def test_the_command_without_a_cache() -> None:
    assert flags(Recipe(), OPTIONS) == {
        "checkpoint_dir": "ckpt",
        "output_dir": "my engine",
        "kv_cache_type": "disabled",
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "gpt_attention_plugin": "auto",
        "gemm_plugin": "disable",
        "max_input_len": "128",
        "max_seq_len": "128",
        "max_batch_size": "256",
        "max_num_tokens": str(128 * 256),
        "opt_num_tokens": str(128 * 256),
        "max_beam_width": "1",
    }


def test_the_baseline_has_a_cache_and_room_for_one_token() -> None:
    got = flags(Recipe(), replace(OPTIONS, cache="paged"))
    assert (got["kv_cache_type"], got["max_seq_len"], got["max_input_len"]) == ("paged", "129", "128")


def test_fp8_with_and_without_the_gemm_plugin() -> None:
    fp8 = Recipe(precision="fp8")
    assert flags(fp8, OPTIONS)["gemm_plugin"] == "disable"
    assert flags(fp8, replace(OPTIONS, gemm_plugin=True))["gemm_plugin"] == "fp8"
    assert flags(Recipe(), replace(OPTIONS, gemm_plugin=True))["gemm_plugin"] == "auto"
    assert "--qformat fp8" in " ".join(quantize_arguments(fp8, model_dir="m", output_dir="o"))
    with pytest.raises(ContractError, match="must ask for fp8"):
        quantize_arguments(Recipe(), model_dir="m", output_dir="o")


def test_plain_needs_no_plugin() -> None:
    got = flags(Recipe(), replace(OPTIONS, layout="plain"))
    assert {v for k, v in got.items() if "plugin" in k or k in ("context_fmha", "remove_input_padding")} == {"disable"}
    assert "opt_num_tokens" not in got


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ({}, {"version": "0.12.0"}, "older ones keep a cache"),
        ({}, {"version": "1.3.0rc1"}, "newer ones build no engines"),
        ({"precision": "int8"}, {}, "precision must be one of"),
        ({"taps": ("blocks.3.resid_post",)}, {}, "the state that the patch marks"),
        ({}, {"prompts_per_pass": 0}, "must be positive"),
        ({}, {"layout": "plain", "cache": "paged"}, "paged cache needs"),
    ],
)
def test_what_cannot_be_built_is_refused(recipe: dict, options: dict, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        build_arguments(replace(Recipe(), **recipe), replace(OPTIONS, **options))


def test_the_last_release_with_engines_is_admitted() -> None:
    assert build_arguments(Recipe(), replace(OPTIONS, version="1.2.1"))


def test_the_shell_text_says_the_same() -> None:
    arguments = build_arguments(Recipe(), OPTIONS)
    script = f"set -- {shell_text(arguments)}\nprintf '%s\\n' \"$@\""
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True)
    assert tuple(done.stdout.splitlines()) == arguments
    assert "'my engine'" in shell_text(arguments)


def test_executor_settings(tmp_path: Path) -> None:
    settings = executor_settings(make_part(tmp_path, version="0.21.0", build_config__kv_cache_type="PAGED"))
    assert settings["outputs"] == [{"name": "final_hidden_states", "gather_context": True}]
    assert settings["kv_cache_config"] == {"enable_block_reuse": False}
    assert settings["executor_config"]["enable_chunked_context"] is False
    assert settings["doorbell"] is False
    json.dumps(settings)
    with pytest.raises(ContractError, match="or newer"):
        executor_settings(make_part(tmp_path, version="0.16.0"))
    with pytest.raises(ContractError, match="without padding"):
        executor_settings(make_part(tmp_path, version="1.0.0", **{PLUGINS + "remove_input_padding": False}))


class Taken(SimpleNamespace):
    """Keyword arguments that a class of the executor was given."""


class NewConfig:
    """As `ExecutorConfig` of the newer versions: other arguments are a TypeError."""

    additional_model_outputs = None

    def __init__(
        self, *, max_beam_width: Any, enable_chunked_context: Any, kv_cache_config: Any, additional_model_outputs: Any
    ) -> None:
        self.taken = additional_model_outputs


class OldConfig:
    """As `ExecutorConfig` of 0.17."""

    additional_output_names = None

    def __init__(
        self, *, max_beam_width: Any, enable_chunked_context: Any, kv_cache_config: Any, additional_output_names: Any
    ) -> None:
        self.taken = additional_output_names


OUTPUT = Taken(name="final_hidden_states", gather_context=True)


@pytest.mark.parametrize(("kind", "taken"), [(NewConfig, [OUTPUT]), (OldConfig, ["final_hidden_states"])])
def test_the_executor_is_given_the_tap_in_the_words_of_its_version(tmp_path: Path, kind: Any, taken: Any) -> None:
    settings = executor_settings(make_part(tmp_path, version="0.21.0", build_config__kv_cache_type="PAGED"))
    names = ("AdditionalModelOutput", "KvCacheConfig", "OutputConfig")
    module = SimpleNamespace(ExecutorConfig=kind, **dict.fromkeys(names, Taken))
    config, output = executor_configs(settings, module)
    assert config.taken == taken
    assert output == Taken(exclude_input_from_output=True, additional_model_outputs=[OUTPUT])


def test_an_executor_without_additional_outputs_is_refused(tmp_path: Path) -> None:
    settings = executor_settings(make_part(tmp_path, version="0.21.0", build_config__kv_cache_type="PAGED"))
    with pytest.raises(ContractError, match="ExecutorConfig must take additional_model_outputs"):
        executor_configs(settings, SimpleNamespace(ExecutorConfig=Taken))


def test_rows_of_the_executor_are_checked(tmp_path: Path) -> None:
    part = make_part(tmp_path)
    rows = np.ones((5, 64), np.float16)
    assert prompt_rows({"context_final_hidden_states": rows}, length=5, part=part) is rows
    for outputs, message in (
        ({"final_hidden_states": rows}, "must hold context_final_hidden_states"),
        ({"context_final_hidden_states": rows[:1]}, r"token=5, d_model=64\]; got \[1, 64\]"),
        ({"context_final_hidden_states": rows * 0}, "zeros only"),
    ):
        with pytest.raises(EngineError, match=message):
            prompt_rows(outputs, length=5, part=part)
