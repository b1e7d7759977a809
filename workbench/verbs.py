"""How a verb of the command line is made: one line of help, and examples below it."""

from __future__ import annotations

import argparse
from typing import Any

SubParsers = Any  # argparse keeps the type of add_subparsers() private


def add_verb(verbs: SubParsers, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    """Add a verb.

    Parameters
    ----------
    verbs : subparsers action
        From `ArgumentParser.add_subparsers`.
    name, text : str
        The verb, and what it does, without a full stop.
    examples : str
        Command lines, one a line.

    Returns
    -------
    argparse.ArgumentParser
        For the verb's arguments; its `run` default must be set to the function that runs it.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser
