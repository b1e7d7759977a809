"""Trial: an engine is loaded and tested once in a process of its own, which may die; the result is remembered.

A damaged or foreign plan can crash the runtime that reads it. The child dies then, and the caller gets its last words.
What a machine has tried once is not tried again: the memory holds the contract's digest, the backend's version and the
machine. The digest, since an edited contract of the same engine may say other things of what it emits.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.canonical import canonical_json, digest_of
from workbench.errors import EngineRefused, shown

if TYPE_CHECKING:
    from workbench.engine.contract import Contract

CHILD = "workbench.engine.trial_child"
CACHE_VARIABLE = "WORKBENCH_CACHE"
TIMEOUT_S = 900
_LAST_WORDS = 600


def run_trial(folder: Path, contract: Contract, *, pass_tokens: int = 0) -> dict[str, Any]:
    """Load an engine in a fresh process, run its self-test, and optionally one pass of full-length prompts.

    Parameters
    ----------
    folder : Path
        Engine folder whose files were checked before.
    contract : Contract
        Of that folder.
    pass_tokens : int
        Tokens of the pass whose memory is measured; 0 for none.

    Returns
    -------
    dict
        `worst` relative error of the self-test, `load_seconds`, `loaded_bytes`, `peak_bytes`, `pass_tokens` and
        `output_bytes`; bytes are resident memory above that of the interpreter with its libraries.

    Raises
    ------
    EngineRefused
        If the child dies, stays silent, or the engine fails its self-test.
    """
    task = {
        "backend": contract.backend.name,
        "folder": str(folder.resolve()),
        "contract": contract.to_json(),
        "pass_tokens": pass_tokens,
    }
    command = [sys.executable, "-m", CHILD]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command,
            input=canonical_json(task),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        raise _refusal(f"no answer in {TIMEOUT_S} s", b"") from None
    answer = _answer(done.stdout)
    if "refused" in answer:
        raise EngineRefused(*map(str, answer["refused"][:3]))
    if done.returncode or not answer:
        raise _refusal(_end_of(done.returncode), done.stderr)
    return answer


def remembered(contract: Contract, version: str) -> bool:
    """Whether this machine has tried this engine with this version of its backend."""
    path = _memory_of(contract, version)
    try:
        return path is not None and path.is_file()
    except OSError:
        return False


def remember(contract: Contract, version: str) -> None:
    """Keep that this engine went well here; where nothing can be written, it is tried again next time."""
    path = _memory_of(contract, version)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError:
        return


def forget(contract: Contract, version: str) -> None:
    """Try this engine again at the next load."""
    path = _memory_of(contract, version)
    if path is not None:
        path.unlink(missing_ok=True)


def cache_folder() -> Path | None:
    """Where this user's memory lies: the variable WORKBENCH_CACHE, or the usual place of caches."""
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME") or (str(Path.home() / ".cache") if os.environ.get("HOME") else "")
    return Path(home) / "hidden-state-workbench" if home else None


@cache
def machine_digest() -> str:
    """Name this machine by what decides whether a plan runs on it: system, processor and its features."""
    facts = [platform.system(), platform.machine(), platform.python_version()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    facts += sorted({line.strip() for line in text.splitlines() if line.startswith(wanted)})
    return digest_of(facts)


def _memory_of(contract: Contract, version: str) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    card = (contract.backend.card or {}).get("name", "")
    key = digest_of([contract.digest, contract.backend.name, version, card, machine_digest()])
    return folder / "tried" / key


def _environment() -> dict[str, str]:
    import workbench

    root = str(Path(workbench.__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _answer(data: bytes) -> dict[str, Any]:
    lines = data.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end_of(code: int) -> str:
    if code < 0:
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"
    return f"it ended with code {code}"


def _refusal(how: str, stderr: bytes) -> EngineRefused:
    words = stderr.decode("utf-8", errors="replace").strip()[-_LAST_WORDS:]
    return EngineRefused(
        "the engine must load and pass its self-test in a process of its own",
        f"{how}; its last words: {shown(words, _LAST_WORDS) if words else 'none'}",
        "Build it again on this machine with `workbench build`.",
    )
