"""Every notebook is stored clean, paired with its text, keeps to public names, and proves in its cells what it says."""

import ast
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from conftest import needs_smollm2

import workbench

jupytext = pytest.importorskip("jupytext", reason="runs once `pip install jupytext nbclient ipykernel` was run")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OTHERS = {"IPython", "numpy", "safetensors", "shared", *sys.stdlib_module_names}
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"

each = pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)


def cells_of(page):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(page).cells]


def trees(page):
    return [ast.parse(source) for kind, source in cells_of(page) if kind == "code"]


def test_numbers_are_in_order_and_every_page_has_its_pair():
    assert [page.stem[:3] for page in NOTEBOOKS] == [f"{number:02}_" for number in range(1, len(NOTEBOOKS) + 1)]
    assert len(NOTEBOOKS) >= 8
    assert [page.stem for page in sorted(FOLDER.glob("[0-9]*.py"))] == [page.stem for page in NOTEBOOKS]


@each
def test_a_notebook_and_its_text_are_in_step(page):
    assert cells_of(page) == cells_of(page.with_suffix(".py")), f"run: jupytext --update --to ipynb {page.stem}.py"


@each
def test_a_notebook_is_stored_without_outputs_and_widgets(page):
    book = nbformat.read(page, as_version=4)
    nbformat.validate(book)
    assert set(book.metadata) <= {"jupytext", "kernelspec"}
    assert book.metadata.kernelspec.name == "python3"
    for cell in book.cells:
        assert set(cell.metadata) <= {"lines_to_next_cell"}  # blank lines of the text, which the formatter asks for
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@each
def test_the_first_cell_says_what_comes_and_how_long_it_takes(page):
    kind, text = cells_of(page)[0]
    assert kind == "markdown"
    assert text.startswith(f"# {int(page.stem[:2])}. ")
    assert "**What you will see.**" in text
    assert "**How long it takes.**" in text


@each
def test_a_finding_in_words_is_proven_by_assertions(page):
    found = cells_of(page)
    findings = [i for i, (kind, text) in enumerate(found) if kind == "markdown" and "**Finding.**" in text]
    assert findings
    for i in findings:
        kind, source = found[i + 1]
        assert kind == "code"
        assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source))), f"cell {i + 1}: {source[:80]}"


def imported(node):
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    return [(node.module, alias.name) for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def check_public(tree):
    """Names of the workbench come from its front door or from what a subpackage offers; nothing private is touched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), ast.unparse(node)
            if isinstance(node.value, ast.Name) and node.value.id == "wb":
                assert node.attr in workbench.__all__, ast.unparse(node)
        for module, name in imported(node):
            top, *rest = module.split(".")
            if top != "workbench":
                assert top in OTHERS, module
            elif rest == ["errors"]:
                assert issubclass(getattr(import_module(module), name), Exception)
            elif name is not None:
                assert len(rest) == 1, f"{module}: use the subpackage"
                assert name in import_module(module).__all__, f"{module} does not offer {name}"


@each
def test_a_notebook_uses_public_names_only(page):
    for tree in trees(page):
        check_public(tree)


@pytest.mark.parametrize(
    "source",
    [
        "run._path",
        "wb.Engine",
        "from workbench.view.page import frame",
        "from workbench.store import open_tap",
        "import torch",
    ],
)
def test_the_check_of_names_can_fail(source):
    with pytest.raises(AssertionError):
        check_public(ast.parse(source))


def test_slow_maps_are_in_one_notebook_at_most():
    fits = [page for page in NOTEBOOKS if any('"umap"' in source for _, source in cells_of(page))]
    assert len(fits) <= 1


@pytest.fixture(scope="session")
def notebook_data(tmp_path_factory):
    """The folder of engines and runs that the notebooks share; one that is already named is used as it is."""
    with pytest.MonkeyPatch.context() as patch:
        made = None if "WORKBENCH_NOTEBOOK_DATA" in os.environ else tmp_path_factory.mktemp("notebooks")
        if made is not None:
            patch.setenv("WORKBENCH_NOTEBOOK_DATA", str(made))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        subprocess.run([sys.executable, "shared.py"], cwd=FOLDER, check=True)
        yield
        if made is not None:
            shutil.rmtree(made)  # 1.5 GB that pytest would keep for three more runs


def check_outputs(cell):
    """What is alive on screen leaves something that a reader without a kernel sees."""
    kinds = [set(output.get("data", {})) for output in cell.outputs]
    assert not any("application/javascript" in kind for kind in kinds)
    if any(WIDGET in kind for kind in kinds):
        assert any({"image/png", "text/html"} <= kind for kind in kinds), cell.source
    if any(PLOTLY in kind for kind in kinds):
        assert any(output.output_type == "stream" and output.name == "stdout" for output in cell.outputs), cell.source


@needs_smollm2
@pytest.mark.slow
@pytest.mark.timeout(900)
@each
def test_a_notebook_runs_from_top_to_bottom(page, notebook_data):
    from nbclient import NotebookClient

    book = nbformat.read(page, as_version=4)
    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code[-1].outputs, "the last cell shows something"
    for cell in code:
        check_outputs(cell)
