"""`workbench patch`: the six lines in a source tree of TensorRT-LLM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.engine.trtllm.patching import apply_patch, inspect_tree, reverse_patch
from workbench.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from workbench.verbs import SubParsers

EXAMPLES = """workbench patch TensorRT-LLM/ --check
workbench patch TensorRT-LLM/
workbench patch TensorRT-LLM/ --reverse"""


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
