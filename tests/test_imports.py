"""The front door costs nothing, and imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import workbench

ROOT = Path(workbench.__file__).parent
UNDER = ("errors", "axes", "canonical", "escaping", "writing", "progress", "lazily", "verbs")
ROW = ("prompts", "tokens", "checkpoint", "graph", "engine", "runtime", "store", "index", "analysis", "view")
ON_TOP = (
    "extraction", "asking", "repairing", "planning", "inspection", "doctor", "demo", "commands", "cli", "__main__",
)  # fmt: skip
ORDER = (*UNDER, *ROW, *ON_TOP)
HEAVY = ("onnx", "onnxruntime", "torch", "plotly", "umap", "sklearn", "numba", "pandas", "tensorrt", "scipy")


def unit_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_units(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("workbench."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("workbench."))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left(path):
    unit = unit_of(path)
    if unit == "__init__":
        return
    here = ORDER.index(unit)
    right = [name for name in imported_units(path) if ORDER.index(name) > here]
    assert not right, f"{path} imports {right}, to its right; move the shared part left"


@pytest.mark.parametrize("room", ["store", "index", "analysis", "view"])
def test_from_the_store_on_nothing_needs_an_engine(room):
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                assert not name.startswith(("onnxruntime", "onnx", "torch", "tensorrt")), f"{path} imports {name}"
                allowed = ("workbench.engine.contract", "workbench.engine.sink")
                assert not name.startswith("workbench.engine") or name in allowed, f"{path} imports {name}"


def in_fresh_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", ["workbench", "workbench.cli"])
def test_import_loads_nothing_heavy(module):
    out = in_fresh_process(f"import sys, {module}; print(*sorted(m.split('.')[0] for m in sys.modules))")
    assert not set(HEAVY) & set(out.split())


def test_every_name_of_the_front_door_resolves():
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None


def test_front_door_names_survive_the_import_of_every_module():
    code = """
import importlib, pkgutil, workbench
for m in pkgutil.walk_packages(workbench.__path__, "workbench."):
    if m.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(m.name)
    except ImportError as error:
        if error.name.split(".")[0] not in ("triton", "tensorrt", "tensorrt_bindings", "tensorrt_rtx", "openvino"):
            raise
print(*[n for n in workbench.__all__ if n != "__version__" and not callable(getattr(workbench, n))])
"""
    assert in_fresh_process(code).split() == []


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="load_prompts"):
        _ = workbench.load_prompt
