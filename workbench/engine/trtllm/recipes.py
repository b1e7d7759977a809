"""A recipe for the backend `tensorrt_llm`: its options, and the command that builds exactly this recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from workbench.engine.trtllm.build_command import BuildOptions, Cache, Layout, build_arguments, quantize_arguments
from workbench.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from workbench.engine.recipe import Recipe

BACKEND = "tensorrt_llm"
RUNNERS = ("raw", "executor")
# What a recipe may say beside its fields; only `version` has no usual value
USUAL: dict[str, Any] = {
    "prompts_per_pass": 64,
    "cache": "disabled",
    "layout": "packed",
    "gemm_plugin": False,
    "runner": "raw",
}
CHOICES = {"cache": get_args(Cache), "layout": get_args(Layout), "runner": RUNNERS, "gemm_plugin": (False, True)}


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Give every option of a recipe, those that it leaves out with their usual value.

    Raises
    ------
    ContractError
        If the recipe is for another backend, an option is not known, or has no such value.
    """
    if recipe.backend != BACKEND:
        raise ContractError(f"the recipe's backend must be {BACKEND}", recipe.backend, "Give it this backend.")
    known = ("version", *USUAL)
    unknown = sorted(set(recipe.options) - set(known))
    if unknown:
        raise ContractError(f"options of {BACKEND} are {', '.join(known)}", ", ".join(unknown), "Leave these out.")
    if not isinstance(recipe.options.get("version"), str):
        got = repr(recipe.options.get("version"))
        raise ContractError("option version must name the TensorRT-LLM that builds", got, "Say 0.16.0, for example.")
    settings = USUAL | dict(recipe.options)
    for name, values in CHOICES.items():
        if settings[name] not in values:
            named = ", ".join(map(str, values))
            raise ContractError(f"option {name} must be one of {named}", repr(settings[name]), "Use one of these.")
    prompts = settings["prompts_per_pass"]
    if not isinstance(prompts, int) or isinstance(prompts, bool) or prompts < 1:
        raise ContractError("option prompts_per_pass must be a whole number above 0", repr(prompts), "Use 64.")
    _check_recipe(recipe, settings)
    return settings


def _check_recipe(recipe: Recipe, settings: Mapping[str, Any]) -> None:
    if recipe.keep:
        raise ContractError(
            "which layers stay in higher precision must be said to the quantiser of TensorRT-LLM",
            ", ".join(recipe.keep),
            "Leave keep out, or use the tensorrt backend.",
        )
    if settings["runner"] == "raw" and settings["cache"] != "disabled":
        raise ContractError(
            "the raw runtime must be given an engine without a cache",
            f"cache {settings['cache']}",
            "Say cache='disabled', or runner='executor'.",
        )


def command_of(recipe: Recipe, *, checkpoint_dir: Path | str, output_dir: Path | str) -> tuple[str, ...]:
    """Give the `trtllm-build` command of a recipe.

    Parameters
    ----------
    recipe : Recipe
        With backend `tensorrt_llm`; options are `version`, `prompts_per_pass`, `cache`, `layout`, `gemm_plugin`, and
        `runner`: `raw`, or `executor` where TensorRT-LLM's own executor will run the engine.
    checkpoint_dir, output_dir : path
        Converted checkpoint, and the folder of the engine.

    Returns
    -------
    tuple of str
        The command and its arguments.

    Raises
    ------
    ContractError
        If the recipe asks for what TensorRT-LLM does not build.
    """
    settings = settings_of(recipe)
    options = BuildOptions(
        checkpoint_dir=checkpoint_dir,
        output_dir=output_dir,
        **{name: value for name, value in settings.items() if name != "runner"},
    )
    return build_arguments(recipe, options)


def conversion_of(recipe: Recipe, *, model_dir: Path | str, output_dir: Path | str) -> tuple[str, ...]:
    """Give the command that makes the FP8 checkpoint of a recipe; empty for other precisions."""
    settings_of(recipe)
    if recipe.precision != "fp8":
        return ()
    return quantize_arguments(recipe, model_dir=model_dir, output_dir=output_dir)
