"""Make and check the patches against real files of TensorRT-LLM.

    python patches/check.py GIT_DIR ...                      check every patch whose file one of these histories holds
    python patches/check.py --make VERSION COMMIT GIT_DIR    write a new patch from a commit
    python patches/check.py --table                          write the table of README.md from the patches

Only git objects are read; nothing of TensorRT-LLM is run or kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.engine.trtllm.blobs import blob_id  # noqa: E402
from workbench.engine.trtllm.finder import find_place, insert_tap  # noqa: E402
from workbench.engine.trtllm.patching import apply_patch, reverse_patch  # noqa: E402
from workbench.engine.trtllm.versions import MODELING, TAP_IN_PLACE, Patch, known_patches  # noqa: E402

TEMPLATE = """\
Version: {version}
Commit: {commit}
Origin: {origin}
Reason: the engine has no output for the state of every token after the final norm; these lines
  mark it where it exists, before the branch keeps the last token of each prompt only
Checked: blob
diff --git a/{path} b/{path}
index {before}..{after} 100644
--- a/{path}
+++ b/{path}
@@ -{line},0 +{next},{count} @@
{added}
"""


def git(folder: Path, *arguments: str) -> bytes | None:
    """Run git in a history; None if it does not hold what is asked for."""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False)  # noqa: S603, S607
    return done.stdout if done.returncode == 0 else None


def make(version: str, commit: str, folder: Path, origin: str) -> None:
    """Write `v<version>.patch` from a commit."""
    full = git(folder, "rev-parse", f"{commit}^{{commit}}")
    source = git(folder, "show", f"{commit}:{MODELING.as_posix()}")
    if full is None or source is None:
        sys.exit(f"{folder} holds no {MODELING} at {commit}")
    line = find_place(source).line - 1
    text = TEMPLATE.format(
        version=version,
        commit=full.decode().strip(),
        origin=origin,
        path=MODELING.as_posix(),
        before=blob_id(source),
        after=blob_id(insert_tap(source)),
        line=line,
        next=line + 1,
        count=len(TAP_IN_PLACE),
        added="\n".join("+" + added for added in TAP_IN_PLACE),
    )
    file = ROOT / "patches" / f"v{version}.patch"
    if file.exists():
        sys.exit(f"{file.name} exists; remove it first")
    file.write_text(text, "utf-8")


def row(patch: Patch) -> str:
    """Give a patch's row of the table."""
    before, after = patch.before[:12], patch.after[:12]
    done = ", ".join(patch.checked)
    return f"| {patch.version} | {patch.origin} `{patch.commit[:12]}` | `{before}` | `{after}` | {done} |"


def write_table() -> None:
    """Put every patch into the table of the README."""
    file = ROOT / "patches" / "README.md"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("| --- ")) + 1
    stop = next(i for i in range(start, len(lines)) if not lines[i].startswith("| "))
    rows = [row(patch) + "\n" for patch in known_patches()]
    file.write_text("".join(lines[:start] + rows + lines[stop:]), "utf-8")


def check(patch: Patch, folders: list[Path]) -> str:
    """Apply a patch to the real file in three ways, reverse it, and say what held."""
    source = next((found for folder in folders if (found := git(folder, "cat-file", "blob", patch.before))), None)
    if source is None:
        return "file not at hand"
    held = [folder.parent.name for folder in folders if git(folder, "cat-file", "-t", patch.commit)]
    place = [git(f, "rev-parse", f"{patch.commit}:{MODELING.as_posix()}") for f in folders]
    assert patch.before.encode() in {found.strip() for found in place if found}, "the commit has another file"
    assert blob_id(insert_tap(source)) == patch.after, "the structural finder disagrees"
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        file = tree / MODELING
        file.parent.mkdir(parents=True)
        file.write_bytes(source)
        assert apply_patch(tree).blob == patch.after
        assert reverse_patch(tree).blob == patch.before
        with_git = [shutil.which("git") or "git", "apply", "--unidiff-zero", str(patch.file)]
        subprocess.run(with_git, cwd=tree, check=True)  # noqa: S603
        assert blob_id(file.read_bytes()) == patch.after, "git apply gives another file"
        subprocess.run([*with_git, "--reverse"], cwd=tree, check=True)  # noqa: S603
        assert file.read_bytes() == source
    return f"blob, apply, reverse, structure and git apply hold; commit in {', '.join(held)}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("git_dirs", nargs="*", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--make", nargs=2, metavar=("VERSION", "COMMIT"))
    parser.add_argument("--origin", default="release")
    arguments = parser.parse_args()
    if arguments.table:
        write_table()
        return
    if not arguments.git_dirs:
        parser.error("name a git directory that holds commits of TensorRT-LLM")
    if arguments.make:
        make(*arguments.make, arguments.git_dirs[0], arguments.origin)
        return
    for patch in known_patches():
        print(f"{patch.version:24} {patch.before[:12]} {patch.after[:12]}  {check(patch, arguments.git_dirs)}")


if __name__ == "__main__":
    main()
