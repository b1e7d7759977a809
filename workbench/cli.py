"""The `workbench` command: the same verbs as in Python, each with examples under `--help`.

A room adds its verbs with `add_commands(subparsers)`; each parser sets `run`, a function of the parsed arguments that
returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from workbench import __version__
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.verbs import SubParsers

ROOMS = (
    "workbench.commands",
    "workbench.store.commands",
    "workbench.analysis.commands",
    "workbench.view.commands",
    "workbench.engine.commands",
    "workbench.engine.trtllm.commands",
)
INTERRUPTED = 130
CUT_SHORT = 141  # as the shell says of a program that SIGPIPE ended
REFUSED = 2


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of every verb."""
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Read, store, compare and probe the hidden states of decoder language models.",
        epilog="Start with: workbench doctor, then: workbench demo",
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    verbs: SubParsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for room in ROOMS:
        import_module(room).add_commands(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Parameters
    ----------
    arguments : sequence of str, optional
        As typed after `workbench`; those of this process by default.

    Returns
    -------
    int
        0 where it went well, 1 where a check failed, 2 where something was refused, 130 after Ctrl-C, 141 where the
        reader of the output went away.
    """
    options = make_parser().parse_args(arguments)
    try:
        code = int(options.run(options) or 0)
        sys.stdout.flush()
    except WorkbenchError as error:
        if options.traceback:
            raise
        print(f"workbench {options.verb}: {visible(str(error))}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        if _is_read():
            raise
        return CUT_SHORT
    except KeyboardInterrupt:
        print(f"workbench {options.verb}: stopped; nothing half-written was left as finished", file=sys.stderr)
        return INTERRUPTED
    return code


def _is_read() -> bool:
    """Whether someone reads the output still; where not (`head` has seen enough), the rest of it goes nowhere."""
    try:
        output = sys.stdout.fileno()
        watch = select.poll()
        watch.register(output, 0)
        if not any(event & select.POLLERR for _, event in watch.poll(0)):
            return True
    except (OSError, AttributeError):  # no file, or a system without poll
        return True
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # else the interpreter would flush and complain
    return False


def visible(text: str) -> str:
    """Show control and direction characters as escapes, so that data never drives the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
