"""`workbench patch` and `workbench trtllm`: the six lines in a source tree, the build command, the contract."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.engine.trtllm.build_command import DTYPES, shell_text
from workbench.engine.trtllm.patching import apply_patch, inspect_tree, reverse_patch
from workbench.engine.trtllm.recipes import BACKEND, CHOICES, USUAL, command_of, conversion_of, settings_of
from workbench.engine.trtllm.releases import EXECUTOR_OUTPUTS_SINCE, has
from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from workbench.engine.recipe import Recipe
    from workbench.verbs import SubParsers

EXAMPLES = """workbench patch TensorRT-LLM/ --check
workbench patch TensorRT-LLM/
workbench patch TensorRT-LLM/ --reverse"""
TRTLLM_EXAMPLES = """\
workbench trtllm export MODEL bf16 --precision bf16
workbench trtllm command MODEL --version 0.16.0 --precision bf16 --checkpoint-dir bf16 --output-dir engine
workbench trtllm command MODEL --version 0.16.0 --precision fp8 --gemm-plugin --checkpoint-dir fp8 --output-dir engine
workbench trtllm command MODEL --version 0.17.0 --cache paged --runner executor --checkpoint-dir c --output-dir engine
workbench trtllm contract MODEL engine --version 0.16.0 --precision bf16
workbench trtllm check engine"""


def add_commands(verbs: SubParsers) -> None:
    """Add `patch` to the command line; the handler is in `run` and returns the exit status."""
    about = "mark the hidden state after the final norm as an output of TensorRT-LLM's decoder definition"
    parser = add_verb(verbs, "patch", about, EXAMPLES)
    parser.add_argument("source_tree", type=Path, help="folder that holds tensorrt_llm/")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--reverse", action="store_true", help="take the six lines out again")
    what.add_argument("--check", action="store_true", help="change nothing; exit 0 with the lines, 1 without them")
    parser.add_argument(
        "--structural", action="store_true", help="also a version that no patch lists, if its structure is as expected"
    )
    parser.set_defaults(run=run_patch)
    about = "engines of TensorRT-LLM: the command that builds a recipe, and the contract of what it built"
    actions = add_verb(verbs, "trtllm", about, TRTLLM_EXAMPLES).add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    command = actions.add_parser("command", help="print the commands that build a recipe")
    _add_recipe(command)
    command.add_argument("--checkpoint-dir", required=True, help="converted checkpoint")
    command.add_argument("--output-dir", required=True, help="folder of the engine")
    command.set_defaults(run=run_command)
    export = actions.add_parser("export", help="write a decoder of the llama kind as trtllm-build reads it")
    export.add_argument("checkpoint", help="what the workbench reads")
    export.add_argument("folder", type=Path, help="the checkpoint in TensorRT-LLM's layout")
    export.add_argument("--precision", default="bf16", choices=[name for name in DTYPES if name != "fp8"])
    export.add_argument("--max-tokens", type=int, default=128, help="longest prompt (default: 128)")
    export.set_defaults(run=run_export)
    contract = actions.add_parser("contract", help="hold a finished engine against its recipe; write its contract")
    _add_recipe(contract)
    contract.add_argument("engine", type=Path, help="folder that trtllm-build wrote")
    contract.set_defaults(run=run_contract)
    check = actions.add_parser("check", help="hold an engine folder against its contract")
    check.add_argument("engine", type=Path, help="folder with the contract")
    check.set_defaults(run=run_check)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="checkpoint of the recipe")
    parser.add_argument("--version", required=True, help="of TensorRT-LLM, such as 0.16.0")
    parser.add_argument("--precision", default="bf16", choices=list(DTYPES))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompts-per-pass", type=int, default=USUAL["prompts_per_pass"])
    parser.add_argument("--cache", default="disabled", choices=CHOICES["cache"])
    parser.add_argument("--layout", default="packed", choices=CHOICES["layout"])
    parser.add_argument("--gemm-plugin", action="store_true")
    parser.add_argument("--runner", default="raw", choices=CHOICES["runner"])


def _recipe(given: argparse.Namespace) -> Recipe:
    from workbench.checkpoint import open_checkpoint
    from workbench.engine.recipe import Recipe

    return Recipe(
        checkpoint=open_checkpoint(given.checkpoint),
        precision=given.precision,
        positions="all",
        backend=BACKEND,
        max_tokens=given.max_tokens,
        options={name: getattr(given, name) for name in ("version", *USUAL)},
    )


def run_export(given: argparse.Namespace) -> int:
    """Write a checkpoint in TensorRT-LLM's layout; returns the exit status.

    Raises
    ------
    UnsupportedError
        If the decoder is not of the llama kind.
    """
    from workbench.checkpoint import open_checkpoint
    from workbench.engine.trtllm.export import export_checkpoint

    opened = open_checkpoint(given.checkpoint)
    folder = export_checkpoint(
        opened.config,
        opened.weights,
        given.folder,
        dtype=DTYPES[given.precision],
        max_positions=given.max_tokens,
    )
    sys.stdout.write(f"{folder}\n")
    return 0


def run_command(given: argparse.Namespace) -> int:
    """Print the commands of a recipe, ready for a shell; returns the exit status.

    Raises
    ------
    ContractError
        If TensorRT-LLM does not build this recipe.
    """
    recipe = _recipe(given)
    build = command_of(recipe, checkpoint_dir=given.checkpoint_dir, output_dir=given.output_dir)
    settings = settings_of(recipe)
    if settings["runner"] == "executor" and not has(settings["version"], EXECUTOR_OUTPUTS_SINCE):
        sys.stderr.write(
            f"note: the executor of TensorRT-LLM reads the tap from {EXECUTOR_OUTPUTS_SINCE} on; this build can be "
            f"timed, but gives no states\n"
        )
    before = conversion_of(recipe, model_dir=given.checkpoint, output_dir=given.checkpoint_dir)
    sys.stdout.write("\n\n".join(shell_text(part) for part in (before, build) if part) + "\n")
    return 0


def run_contract(given: argparse.Namespace) -> int:
    """Write the contract of a finished engine; returns the exit status.

    Raises
    ------
    EngineRefused
        If the engine is not what the recipe says.
    """
    from workbench.engine.trtllm.contract import make_contract, write_contract

    contract = make_contract(_recipe(given), given.engine)
    sys.stdout.write(f"{write_contract(contract, given.engine)}\n")
    return 0


def run_check(given: argparse.Namespace) -> int:
    """Hold an engine folder against its contract; returns the exit status.

    Raises
    ------
    EngineRefused
        If they differ.
    """
    from workbench.engine.trtllm.contract import read_contract

    contract = read_contract(given.engine)
    part = contract.engine
    sys.stdout.write(
        f"{part.architecture} of TensorRT-LLM {part.version}, {part.dtype}, layout {part.layout}, "
        f"cache {part.kv_cache_type.lower()}, run by {contract.runner}; proven: {contract.proven}\n"
    )
    return 0


def run_patch(arguments: argparse.Namespace) -> int:
    """Patch, reverse or check the tree that the command line names.

    Returns
    -------
    int
        Exit status: 0, or 1 from `--check` where the tap is not there.

    Raises
    ------
    PatchRefused
        If the tree is not one that the patch is proven for.
    """
    if arguments.check:
        state = inspect_tree(arguments.source_tree)
        sys.stdout.write(f"{state}\n")
        return int(state.state != "patched")
    act = reverse_patch if arguments.reverse else apply_patch
    sys.stdout.write(f"{act(arguments.source_tree, structural=arguments.structural)}\n")
    return 0
