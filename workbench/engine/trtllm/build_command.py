"""The exact `trtllm-build` command of a recipe, as arguments and as text for a shell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from workbench.engine.trtllm.releases import ENGINES_UNTIL, KV_CACHE_TYPE_SINCE, has
from workbench.errors import ContractError

if TYPE_CHECKING:
    from pathlib import Path

Layout = Literal["packed", "padded", "plain"]
Cache = Literal["disabled", "paged", "continuous"]
GENERATED_TOKENS = 1  # the baseline with a cache gives one token, as a generator's prefill does
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}


class RecipeLike(Protocol):
    """What a recipe must say here."""

    @property
    def precision(self) -> str:
        """Precision of the engine: fp32, fp16, bf16 or fp8."""
        ...

    @property
    def taps(self) -> tuple[str, ...]:
        """Hidden states that leave the engine."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest prompt in tokens."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """What the recipe leaves open.

    Parameters
    ----------
    version : str
        Version of TensorRT-LLM.
    checkpoint_dir, output_dir : path
        Converted checkpoint, and the folder of the engine.
    prompts_per_pass : int
        Batch that will really be used; the builder tunes for it.
    cache : str
        `disabled`, or `paged` or `continuous` for the baseline with a cache and one token.
    layout : str
        `packed`, `padded` or `plain`, as in `TensorRtLlmPart`.
    gemm_plugin : bool
        Whether matrix products go through the plugin. With fp8 NVIDIA advises against it for more than a few rows:
        measure both.
    """

    version: str
    checkpoint_dir: Path | str
    output_dir: Path | str
    prompts_per_pass: int
    cache: Cache = "disabled"
    layout: Layout = "packed"
    gemm_plugin: bool = False


def build_arguments(recipe: RecipeLike, options: BuildOptions) -> tuple[str, ...]:
    """Give the command that builds this recipe.

    Parameters
    ----------
    recipe : RecipeLike
        Precision, taps and longest prompt.
    options : BuildOptions
        The rest.

    Returns
    -------
    tuple of str
        The command and its arguments. `opt_num_tokens` is set to the whole pass: its default, the number of prompts,
        would tune for generation.

    Raises
    ------
    ContractError
        If recipe, version and options do not go together.
    """
    check_options(recipe, options)
    prompts, length = options.prompts_per_pass, recipe.max_tokens
    tokens = prompts * length
    arguments = {
        "checkpoint_dir": options.checkpoint_dir,
        "output_dir": options.output_dir,
        "kv_cache_type": options.cache,
        "max_batch_size": prompts,
        "max_input_len": length,
        "max_seq_len": length + (GENERATED_TOKENS if options.cache != "disabled" else 0),
        "max_num_tokens": tokens,
        "opt_num_tokens": tokens,
        "max_beam_width": 1,
        "gemm_plugin": _gemm(recipe, options),
        **_layout(options.layout),
    }
    if options.layout != "packed":  # the number of tokens is the shape there, and asking for it only warns
        arguments = {key: value for key, value in arguments.items() if not key.endswith("_num_tokens")}
    pairs = ((f"--{key}", str(value)) for key, value in arguments.items())
    return ("trtllm-build", *(word for pair in pairs for word in pair))


def _gemm(recipe: RecipeLike, options: BuildOptions) -> str:
    if not options.gemm_plugin:
        return "disable"
    return "fp8" if recipe.precision == "fp8" else "auto"


def _layout(layout: Layout) -> dict[str, str]:
    if layout == "plain":
        off = ("gpt_attention_plugin", "context_fmha", "remove_input_padding")
        return dict.fromkeys(off, "disable")
    return {
        "gpt_attention_plugin": "auto",
        "context_fmha": "enable",
        "remove_input_padding": "enable" if layout == "packed" else "disable",
    }


def check_options(recipe: RecipeLike, options: BuildOptions) -> None:
    """Refuse what cannot be built, or would not be what the recipe says.

    Raises
    ------
    ContractError
        If recipe, version and options do not go together.
    """
    fits = has(options.version, KV_CACHE_TYPE_SINCE) and has(ENGINES_UNTIL, options.version)
    releases = f"{KV_CACHE_TYPE_SINCE} to {ENGINES_UNTIL}"
    rules = (
        (
            fits,
            f"TensorRT-LLM must be of {releases}: older ones keep a cache always, newer ones build no engines",
            options.version,
        ),
        (recipe.precision in DTYPES, f"precision must be one of {', '.join(DTYPES)}", recipe.precision),
        (
            recipe.taps == ("final_norm",),
            "taps must be ('final_norm',), the state that the patch marks",
            str(recipe.taps),
        ),
        (options.prompts_per_pass > 0, "prompts_per_pass must be positive", str(options.prompts_per_pass)),
        (
            options.layout != "plain" or options.cache != "paged",
            "a paged cache needs the attention plugin",
            "layout plain",
        ),
        (
            options.layout != "plain" or recipe.precision != "fp8" or not options.gemm_plugin,
            "layout plain must do without plugins",
            "gemm_plugin",
        ),
    )
    for holds, what, got in rules:
        if not holds:
            raise ContractError(what, got, "Change the recipe, or use the tensorrt backend.")


def quantize_arguments(
    recipe: RecipeLike, *, model_dir: Path | str, output_dir: Path | str, calibration_prompts: int = 512
) -> tuple[str, ...]:
    """Give the command that converts a model to an FP8 checkpoint, run in a checkout of TensorRT-LLM.

    Parameters
    ----------
    recipe : RecipeLike
        Must say fp8.
    model_dir, output_dir : path
        Model in the Hugging Face layout, and where the checkpoint goes.
    calibration_prompts : int
        Texts that the scales are calibrated on.

    Returns
    -------
    tuple of str
        The command and its arguments.

    Raises
    ------
    ContractError
        If the recipe asks for another precision.
    """
    if recipe.precision != "fp8":
        raise ContractError("the recipe must ask for fp8", recipe.precision, "Convert with convert_checkpoint.py.")
    arguments = {
        "model_dir": model_dir,
        "output_dir": output_dir,
        "dtype": DTYPES["fp8"],
        "qformat": "fp8",
        "calib_size": calibration_prompts,
        "calib_max_seq_length": recipe.max_tokens,
    }
    pairs = ((f"--{key}", str(value)) for key, value in arguments.items())
    return ("python", "examples/quantization/quantize.py", *(word for pair in pairs for word in pair))


def shell_text(arguments: tuple[str, ...]) -> str:
    r"""Write a command for a shell: one option a line, quoted, lines joined by `\`."""
    lines: list[str] = []
    for word in arguments:
        if lines and not word.startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return " \\\n  ".join(lines)
