"""The live view in a real JupyterLab in a real browser, checked against its kernel."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from hostile_strings import HOSTILE
from lab_session import lab_page, wait_for
from view_browser import COLOURED, browser_test, expect, inside, opened
from view_runs import int8_contract, make_run

pytestmark = [browser_test, pytest.mark.slow]
TAPS = ("blocks.0.resid_post", "final_norm")
SETUP = """
from workbench.store import open_run
from workbench.view import explore, frame
events = []
a, b = open_run("../a"), open_run("../b")
"""
SHOW = """
view = explore(a, b)
view.on_select(lambda rows: events.append(len(rows)))
view
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 6, 600)
    states = {tap: rng.normal(size=(6, 16))[kind] * 2 + rng.normal(size=(600, 16)) for tap in TAPS}
    texts = [f"prompt {i} of kind {k}" for i, k in enumerate(kind)]
    columns = {"kind": [f"kind {k}" for k in kind], "value": rng.normal(size=600).tolist()}
    make_run(folder / "a", texts, columns, states=states, taps=TAPS)
    noisy = {tap: s[:580] + 0.05 * rng.normal(size=(580, 16)) for tap, s in states.items()}
    make_run(folder / "b", texts[:580], states=noisy, taps=TAPS, contract=int8_contract())
    make_run(
        folder / "hostile", [t or "empty" for t in HOSTILE], {HOSTILE[0]: [HOSTILE[i % 9] for i in range(len(HOSTILE))]}
    )
    with lab_page(folder) as found:
        found.open("first.ipynb", [SETUP, SHOW])
        found.run_all()
        found.shown()
        found.first_tabs = found.page.locator(".wb-bar .wb-tabs").first.inner_text()
        yield found


@pytest.fixture
def seen(lab):
    lab.page.locator(".wb-widget .wb-maps").scroll_into_view_if_needed()
    lab.do("view.clear(); events.clear()")
    expect(lab.page.locator(".wb-count")).to_have_text("nothing selected")
    yield lab
    assert lab.foreign == []


def test_the_kernel_is_of_the_version_asked_for(lab):
    """`make test-kernels` runs these tests with versions that handle a click in a running cell in different ways."""
    found = lab.ask("__import__('ipykernel').__version__")
    assert found == os.environ.get("WORKBENCH_TEST_IPYKERNEL", found)


def test_the_first_map_is_there_when_the_cell_returned_and_umap_comes_by_itself(lab):
    assert "UMAP" not in lab.first_tabs
    expect(lab.page.locator("figure[class^=wb-twin]")).to_be_hidden()
    for pane in (0, 1):
        assert lab.page.locator(".wb-points").nth(pane).evaluate(COLOURED) > 1500
    expect(lab.page.get_by_role("button", name="UMAP", exact=True)).to_be_visible(timeout=180_000)
    expect(lab.page.locator(".wb-status").first).to_be_hidden()
    expect(lab.page.locator(".wb-live-sections h2")).to_have_text("fp32 against int8")
    assert "20 rows not in this run" in lab.page.locator(".wb-pane-note").nth(1).inner_text()


def test_a_rectangle_and_a_lasso_select_what_numpy_finds(seen):
    lab, xy = seen, seen.places(-1)
    lab.page.get_by_role("button", name="Rectangle").click()
    x0, x1 = np.percentile(xy[:, 0], [20, 70])
    y0, y1 = np.percentile(xy[:, 1], [20, 70])
    lab.draw_line(lab.screen([(x0, y0), (x1, y1)]))
    wait_for(lambda: lab.ask("len(view.selected)"), "the selection")
    expected = np.flatnonzero(inside([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], xy))
    chosen = lab.ask("view.selected.tolist()")
    assert len(set(chosen) ^ set(expected.tolist())) <= 2  # rows on the edge: the mouse goes by whole pixels
    assert lab.ask("view.mask.nonzero()[0].tolist()") == chosen
    assert lab.ask("events") == [len(chosen)]
    lab.page.get_by_role("button", name="Lasso").click()
    angle = np.linspace(0, 2 * np.pi, 30)
    ring = xy.mean(axis=0) + 4 * np.column_stack((np.cos(angle), np.sin(angle)))
    lab.draw_line(lab.screen(ring, 0), ["Shift"])
    joined = sorted(set(chosen) | set(np.flatnonzero(inside(ring, xy)).tolist()))
    wait_for(lambda: len(lab.ask("events")) == 2, "the second event")
    assert len(set(lab.ask("view.selected.tolist()")) ^ set(joined)) <= 3


def test_python_selects_in_both_maps_and_the_table_with_one_event(seen):
    seen.do("view.selected = range(100, 130)")
    expect(seen.page.locator(".wb-count")).to_have_text("30 selected")
    assert seen.ask("view.selected.tolist()") == list(range(100, 130))
    assert seen.ask("events") == [30]
    seen.page.get_by_label("selected only").check()
    expect(seen.page.locator(".wb-table")).to_have_attribute("aria-rowcount", "30")
    seen.page.get_by_label("selected only").uncheck()
    seen.do("view.select(view.mask)")
    seen.page.get_by_role("button", name="Invert").click()
    wait_for(lambda: seen.ask("events") == [30, 570], "one event for the click")


def test_hover_and_selection_cross_the_maps_while_the_kernel_is_busy(seen):
    xy = seen.places(-1)
    at = seen.screen(xy)
    alone = int(np.argmax(xy[:580, 1]))
    seen.client.execute("import time; time.sleep(4)")
    seen.page.mouse.move(*at[alone])
    expect(seen.page.locator(".wb-pane").nth(1)).to_have_attribute("data-ring", str(alone))
    seen.page.mouse.click(*at[alone])
    expect(seen.page.locator(".wb-count")).to_have_text("1 selected")
    wait_for(lambda: seen.ask("view.selected.tolist()") == [alone], "the click, after the cell")


def test_the_tap_slider_keeps_frame_and_selection(seen):
    seen.do("view.selected = [1, 2, 3]")
    expect(seen.page.locator(".wb-count")).to_have_text("3 selected")
    before = seen.frame()[:5]
    seen.page.get_by_label("Tap", exact=True).fill("0")
    expect(seen.page.locator(".wb-layer output")).to_have_text(TAPS[0])
    seen.page.wait_for_timeout(100)
    assert seen.frame()[4] == pytest.approx(before[4], rel=0.5)
    expect(seen.page.locator(".wb-count")).to_have_text("3 selected")
    wait_for(lambda: seen.ask("view.tap") == TAPS[0], "the tap in Python")
    seen.page.get_by_label("Tap", exact=True).fill("1")
    wait_for(lambda: seen.ask("view.tap") == TAPS[1], "the tap in Python")


def test_neighbours_are_found_in_full_width(seen):
    seen.page.locator(".wb-table tbody tr[data-row]").first.click()
    seen.page.get_by_role("button", name="Select nearest rows").click()
    wait_for(lambda: seen.ask("view.selected.tolist() == sorted(view.neighbours(0).tolist())"), "the neighbours")


def test_the_theme_follows_the_lab_without_a_new_run(seen):
    widget = seen.page.locator(".wb-widget")
    expect(widget).to_have_attribute("data-theme", "light")
    paper = widget.evaluate("(n) => getComputedStyle(n).backgroundColor")
    seen.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
    expect(widget).to_have_attribute("data-theme", "dark")
    assert widget.evaluate("(n) => getComputedStyle(n).backgroundColor") != paper
    assert seen.page.locator(".wb-points").first.evaluate(COLOURED) > 1000
    seen.command("apputils:change-theme", {"theme": "JupyterLab Light"})
    expect(widget).to_have_attribute("data-theme", "light")


def test_the_export_button_writes_a_page_that_works_offline(seen):
    seen.page.get_by_role("button", name="Write report").click()
    expect(seen.page.locator(".wb-note")).to_contain_text("Report written")
    with opened(seen.browser, seen.folder / "a.html") as found:
        assert found.page.locator(".wb-points").nth(1).evaluate(COLOURED) > 1000
        assert found.page.locator(".wb-tabs").first.inner_text().split() == ["PCA", "UMAP"]
        found.check()


def test_hostile_texts_stay_text_in_the_lab(lab):
    lab.open(
        "hostile.ipynb",
        [
            SETUP,
            'explore(open_run("../hostile"), umap=False)',
            'frame(explore(a, background=False).to_html("../f.html"))',
        ],
    )
    lab.run_all()
    lab.page.locator('.wb-widget[data-ready="true"]').wait_for()
    lab.page.locator(".wb-table-scroll").focus()
    for _ in range(8):
        lab.page.keyboard.press("ArrowDown")
    shown = lab.page.locator(".wb-text bdi").text_content()
    assert shown == HOSTILE[8]
    lab.page.locator("iframe").scroll_into_view_if_needed()  # what is out of sight is not drawn
    inner = lab.page.frame_locator("iframe")
    expect(inner.locator("#wb-root")).to_have_attribute("data-ready", "true")
    expect(inner.locator(".wb-pane").first).to_have_attribute("data-draws", re.compile("[1-9]"))
    assert lab.page.evaluate("window.__pwned__ === undefined")


def test_a_second_fit_waits_and_a_cancel_of_the_first_lets_it_run(lab):
    """Cancel ends the worker at once; kernel and map stay, no partial file is left, and the next fit works."""
    make_run(lab.folder / "large", [f"p{i}" for i in range(12_000)], width=8)
    make_run(lab.folder / "next", [f"p{i}" for i in range(300)], width=8)
    lab.close()
    cells = [SETUP, 'view = explore(open_run("../large"))\nview', 'second = explore(open_run("../next"))\nsecond']
    lab.open("cancel.ipynb", cells)
    lab.run_cell(0)
    lab.run_cell(1)
    first = lab.page.locator(".jp-CodeCell").nth(1)
    expect(first.locator(".wb-status").first).to_contain_text("UMAP", timeout=120_000)
    lab.do("from workbench.analysis.worker import worker")
    wait_for(lambda: lab.ask("worker()._process is not None"), "the worker", 60)
    number = lab.ask("worker()._process.pid")
    lab.run_cell(2)
    last = lab.page.locator(".jp-CodeCell").nth(2)
    expect(last.locator(".wb-status").first).to_contain_text("waits until another fit ends", timeout=60_000)
    assert lab.ask("1 + 1") == 2
    first.locator(".wb-status button").first.click()
    expect(first.locator(".wb-status").first).to_contain_text("Cancelled")
    ended = f"worker()._process is None or worker()._process.pid != {number}"
    wait_for(lambda: lab.ask(ended), "the end of the worker", 5)
    assert first.locator(".wb-points").first.evaluate(COLOURED) > 1000
    assert not list(lab.folder.glob("large.maps/umap*"))
    expect(last.get_by_role("button", name="UMAP", exact=True)).to_be_visible(timeout=180_000)
    assert lab.ask("second.status['running']") is False
    assert list(lab.folder.glob("next.maps/umap*.json"))


def test_a_saved_notebook_shows_its_picture_and_one_call_brings_everything_back(lab):
    lab.close()
    lab.go("first.ipynb")
    lab.run_all()
    lab.page.locator('.wb-widget[data-ready="true"]').wait_for()
    lab.page.get_by_label("Colour by").select_option(label="value")
    lab.do("view.selected = [5, 6]; view.keep('two')")
    wait_for(lambda: lab.ask("view.place.get('colour')") == "value", "the place")
    lab.command("docmanager:save")
    saved = lab.folder / "work" / "first.ipynb"
    wait_for(lambda: "wb-twin" in saved.read_text(), "the saved picture")
    assert saved.stat().st_size < 1_000_000
    outputs = json.loads(saved.read_text())["cells"][1]["outputs"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    lab.page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    lab.close()
    lab.go("first.ipynb")
    picture = lab.page.locator("figure[class^=wb-twin] img, .jp-RenderedImage img").first
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("(n) => n.naturalWidth") > 300
    lab.run_all()
    lab.page.locator('.wb-widget[data-ready="true"]').wait_for()
    expect(lab.page.locator(".wb-count")).to_have_text("2 selected")
    expect(lab.page.get_by_label("Colour by").locator("option:checked")).to_have_text("value")
    lab.close()
    assert lab.ask("view.selections['two'].tolist()") == [5, 6]
