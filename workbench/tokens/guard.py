"""Trial of a tokenizer.json in a child process: what hangs or crashes there does not reach this one.

A regular expression in the file may take exponential time, and the library's native code may panic or exhaust memory
(huggingface/tokenizers#2060). Files whose expressions are all well known skip the trial.
"""

from __future__ import annotations

import json
import subprocess
import sys

from workbench.errors import TokenError, shown

DEADLINE_S = 30.0
_MEMORY_BYTES = 8 << 30
_PROBES = (
    *(
        unit * 3000
        for unit in ("a", "A", "1", " ", "\n", "!", "'", "aA", "a ", "a1", "a!", " \n", "\u4e00", "\u0301", "é")
    ),
    *("a" * 40 + end for end in ("!", "\n", "1", "'")),
    "Text with 123 numbers, it's \t tabs\r\n and \U0001f469\u200d\U0001f680.",
)


def try_tokenizer(text: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Load a tokenizer.json in a child process and let it tokenise texts that are hard on regular expressions.

    Raises
    ------
    TokenError
        If it does not load, crashes, or has not finished by the deadline.
    """
    command = [sys.executable, "-I", "-c", _CHILD, str(_MEMORY_BYTES)]
    request = json.dumps({"tokenizer": text, "probes": _PROBES}).encode()
    do = "Do not use this file unless you trust its source; pass token_ids instead."
    try:
        child = subprocess.run(  # noqa: S603
            command, input=request, capture_output=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TokenError(f"tokenizer.json must tokenise short texts within {deadline_s:g} s", "no answer", do) from None
    if child.returncode:
        tail = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TokenError("tokenizer.json must load and tokenise", shown(f"exit {child.returncode}: {tail}"), do)


# Run by an interpreter of its own that sees this text and nothing of the package.
_CHILD = """
import json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
except (ImportError, ValueError, OSError):
    pass
request = json.load(sys.stdin)
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_str(request["tokenizer"])
tokenizer.no_truncation()
tokenizer.no_padding()
for probe in request["probes"]:
    tokenizer.encode(probe, add_special_tokens=False)
"""
