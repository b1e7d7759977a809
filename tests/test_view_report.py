"""The report as a reader meets it: a real Chromium, network off, the file opened from a disk."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hostile_strings import HOSTILE
from view_browser import COLOURED, CONTRAST, browser_test, chromium, expect, inside, opened
from view_runs import contract, int8_contract, make_run

from workbench.analysis import compare, fit_probe, project
from workbench.view import read_selection, report

pytestmark = browser_test
DATE = "2026-01-02"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two runs of 400 prompts, the second without the last 20; row 7 of the first is not finite."""
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 6, 400)
    states = rng.normal(size=(6, 16))[kind] * 2 + rng.normal(size=(400, 16))
    columns = {
        "kind": [f"kind {k}" for k in kind],
        "value": [float(v) for v in states[:, 0] + 0.3 * rng.normal(size=400)],
    }
    states[7, 3] = np.nan
    texts = [f"prompt {i} of {'even' if i % 2 == 0 else 'odd'} kind {k}" for i, k in enumerate(kind)]
    run = make_run(folder / "a", texts, columns, states=states)
    other = make_run(
        folder / "b", texts[:380], states=states[:380] + 0.05 * rng.normal(size=(380, 16)), contract=int8_contract()
    )
    return run, other


@pytest.fixture(scope="module")
def made(pair, tmp_path_factory):
    """A report of the pair: its file, and the map that it shows."""
    run, other = pair
    joint = project([run, other], "final_norm", progress=False)
    probe = fit_probe(run, "final_norm", "value", rows=run.valid, shuffles=3)
    file = report(
        run, other, joint, probe, out=tmp_path_factory.mktemp("report") / "r.html", date=DATE, color="kind", quiet=True
    )
    return file, joint


@pytest.fixture
def seen(browser, made):
    with opened(browser, made[0]) as found:
        found.page.locator(".wb-exchange summary").click()
        found.page.evaluate("scrollTo(0, 150)")
        yield found
        found.check()


def both(joint):
    """Coordinates of the rows of the first run in both panes, NaN where there is none: [pane, row, 2]."""
    places = np.full((2, 400, 2), np.nan)
    for run in (0, 1):
        here = joint.run_of_row == run
        places[run, joint.rows[here]] = joint.coordinates[here]
    return places


def test_both_maps_are_drawn(seen):
    page = seen.page
    assert page.locator(".wb-pane").count() == 2
    for pane in (0, 1):
        assert page.locator(".wb-points").nth(pane).evaluate(COLOURED) > 2000
        assert page.locator(".wb-badge").nth(pane).inner_text() == "joint"
    assert "20 rows not in this run" in page.locator(".wb-pane-note").nth(1).inner_text()
    assert "1 row without coordinates" in page.locator(".wb-pane-note").nth(0).inner_text()


@pytest.mark.parametrize("pane", [0, 1])
def test_a_lasso_selects_the_rows_that_numpy_finds_in_both_maps_and_the_table(seen, made, pane):
    places = both(made[1])[pane]
    middle = np.nanmedian(places, axis=0)
    angle = np.linspace(0, 2 * np.pi, 40)
    star = middle + np.column_stack((np.cos(angle), np.sin(angle))) * (5 + 3 * np.cos(3 * angle))[:, None]
    seen.draw_line(seen.screen(star, pane))
    text = seen.page.locator(".wb-exchange textarea").input_value()
    chosen = read_selection(text)
    assert chosen.made["pane"] == pane
    expected = np.flatnonzero(inside(chosen.made["polygon"], places))
    assert 10 < len(expected) < 390
    np.testing.assert_array_equal(chosen.rows, expected)
    np.testing.assert_allclose(chosen.made["polygon"][20], star[20], atol=0.1)  # the line is where the mouse went
    seen.page.get_by_label("selected only").check()
    assert seen.page.locator(".wb-table").get_attribute("aria-rowcount") == str(len(expected))
    assert seen.page.locator(".wb-count").inner_text().startswith(f"{len(expected)} selected")


def test_rectangles_add_subtract_invert_and_clear(seen, made):
    places = both(made[1])[0]
    left, right = np.nanpercentile(places[:, 0], [5, 60])
    low, high = np.nanpercentile(places[:, 1], [10, 70])
    seen.page.get_by_role("button", name="Rectangle").click()
    found = []
    for box, modifiers in (
        ((left, low, right, high), ()),
        ((right - 1, low, right + 2, high), ("Shift",)),
        ((left, low, left + 3, high), ("Alt",)),
    ):
        x0, y0, x1, y1 = box
        seen.draw_line(seen.screen([(x0, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x1, y1)]), modifiers)
        found.append(set(seen.selection()["rows"]))

    def rows(x0, y0, x1, y1):
        return set(np.flatnonzero(inside([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], places)).tolist())

    slack = 2  # the mouse goes by whole pixels, so a row on the edge may fall on either side
    assert len(found[0] ^ rows(left, low, right, high)) <= slack
    assert found[1] > found[0]
    assert len(found[1] ^ (found[0] | rows(right - 1, low, right + 2, high))) <= slack
    assert len(found[2] ^ (found[1] - rows(left, low, left + 3, high))) <= slack
    seen.page.get_by_role("button", name="Invert").click()
    assert set(seen.selection()["rows"]) == set(range(400)) - found[2]
    assert "not drawn" in seen.page.locator(".wb-count").inner_text()  # row 7 has no place on any map
    seen.page.get_by_role("button", name="Clear", exact=True).click()
    assert seen.selection()["rows"] == []


def test_hover_shows_the_text_and_marks_the_twin(seen, made):
    places = both(made[1])[0]
    far = np.nanargmax(np.nan_to_num(places[:380, 0], nan=-9e9))  # alone at the edge
    x, y = seen.screen(places[[far]])[0]
    seen.page.mouse.move(x, y)
    assert f"prompt {far} " in seen.page.locator(".wb-tip").first.inner_text()
    assert seen.page.locator(".wb-pane").nth(1).get_attribute("data-ring") == str(far)
    assert seen.page.locator(".wb-text").get_attribute("data-row") == str(far)


def test_search_finds_what_python_finds(seen, pair):
    texts = pair[0].prompts.texts
    page = seen.page
    page.get_by_label("Search prompts").fill("EVEN kind 3")
    expected = [i for i, text in enumerate(texts) if "even kind 3" in text]
    expect(page.locator(".wb-table")).to_have_attribute("aria-rowcount", str(len(expected)))
    page.get_by_role("button", name=f"Select {len(expected)} matches").click()
    assert seen.selection()["rows"] == expected
    page.locator(".wb-toggle").click()
    page.get_by_label("Search prompts").fill(r"^prompt \d*[05] of odd")
    expected = [i for i in range(400) if i % 10 == 5]
    expect(page.locator(".wb-table")).to_have_attribute("aria-rowcount", str(len(expected)))
    page.get_by_role("button", name=f"Select {len(expected)} matches").click()
    assert seen.selection()["rows"] == expected
    page.get_by_label("Search prompts").fill("(")
    expect(page.locator(".wb-find .wb-message")).to_contain_text("Unterminated")


def test_an_expression_that_never_ends_does_not_hang_the_page(browser, tmp_path):
    run = make_run(tmp_path / "r", ["a" * 60 + "!", *(f"p {i}" for i in range(9))])
    with opened(browser, report(run, out=tmp_path / "r.html", quiet=True)) as found:
        found.page.locator(".wb-toggle").click()
        found.page.get_by_label("Search prompts").fill("(a+)+$")
        assert found.page.evaluate("1 + 1") == 2
        expect(found.page.locator(".wb-find .wb-message")).to_contain_text("longer than one second")
        found.page.get_by_label("Search prompts").fill("p [0-4]$")
        expect(found.page.locator(".wb-table")).to_have_attribute("aria-rowcount", "5")
        found.check()


def test_a_copied_selection_comes_back_in_python_and_on_the_page(seen, pair):
    page = seen.page
    page.locator(".wb-class").first.click()
    text = page.locator(".wb-exchange textarea").input_value()
    selection = read_selection(text, run=pair[0].manifest.run_id)
    assert selection.mask(400).sum() == len(selection.rows) > 10
    page.get_by_role("button", name="Clear", exact=True).click()
    page.locator(".wb-exchange textarea").fill(selection.to_json())
    page.get_by_role("button", name="Select from text").click()
    assert seen.selection()["rows"] == selection.rows.tolist()
    page.get_by_label("Name of the selection").fill("mine <b>")
    page.get_by_role("button", name="Keep selection").click()
    assert page.locator(".wb-chip bdi").inner_text() == "mine <b>"
    page.locator(".wb-exchange textarea").fill('{"workbench":"selection","version":1,"run":"x","rows":[1]}')
    page.get_by_role("button", name="Select from text").click()
    assert "another run" in page.locator(".wb-exchange .wb-message").inner_text()


def test_a_hidden_class_stays_selected_and_is_counted(seen):
    page = seen.page
    page.locator(".wb-class").first.click()
    before = len(seen.selection()["rows"])
    page.locator(".wb-entry input").first.uncheck()
    assert f"{before} selected, {before} not drawn" in page.locator(".wb-count").inner_text()
    assert len(seen.selection()["rows"]) == before


def test_numbers_colour_and_filter(seen, pair):
    seen.page.get_by_label("Colour by").select_option(label="value")
    seen.page.get_by_label("smallest value shown").fill("0")
    seen.page.get_by_label("smallest value shown").press("Enter")
    expected = sum(v >= 0 for v in pair[0].prompts.columns["value"])
    assert seen.page.locator(".wb-table").get_attribute("aria-rowcount") == str(expected)
    assert seen.page.locator(".wb-points").first.evaluate(COLOURED) > 500


def test_everything_works_by_keyboard(browser, made):
    with opened(browser, made[0]) as found:
        page = found.page
        names = []
        for _ in range(45):
            page.keyboard.press("Tab")
            focus = page.locator(":focus")
            names.append(focus.get_attribute("aria-label") or focus.text_content() or "")
            if names[-1].startswith("Map"):
                break
        assert "Search prompts" in names
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator(".wb-tip").first.is_visible()
        page.keyboard.press("Enter")
        assert len(found.selection()["rows"]) == 1
        assert "1 selected" in page.locator(".wb-live").inner_text()
        before = page.locator(".wb-pane").first.get_attribute("data-frame")
        page.keyboard.press("+")
        expect(page.locator(".wb-pane").first).not_to_have_attribute("data-frame", before)
        page.keyboard.press("Escape")
        assert found.selection()["rows"] == []
        page.locator(".wb-table-scroll").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.keyboard.press("End")
        page.keyboard.press("Shift+Enter")
        assert found.selection()["rows"] == [1, 399]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        found.check()


def test_the_table_sorts_by_any_column(seen, pair):
    head = seen.page.get_by_role("button", name="value", exact=True)
    head.click()
    values = np.array(pair[0].prompts.columns["value"])
    assert seen.page.locator(".wb-table tbody tr[data-row]").first.get_attribute("data-row") == str(values.argmin())
    head.click()
    assert seen.page.locator(".wb-table tbody tr[data-row]").first.get_attribute("data-row") == str(values.argmax())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 420)])
def test_text_is_readable_and_nothing_sticks_out(browser, made, scheme, width):
    with opened(browser, made[0], scheme=scheme, width=width) as found:
        assert found.page.evaluate(CONTRAST) == []
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.page.locator("html").get_attribute("data-theme") == scheme
        found.page.emulate_media(media="print")
        expect(found.page.locator("html")).to_have_attribute("data-theme", "light")
        assert found.page.locator(".wb-points").first.evaluate(COLOURED) > 500
        found.check()


def test_hostile_strings_stay_text_everywhere(browser, tmp_path):
    hostile = [text or "empty" for text in HOSTILE] + ["x" * 1_000_000]
    names = hostile[:6]
    columns = {name: [hostile[(i + j) % len(hostile)] for i in range(len(hostile))] for j, name in enumerate(names)}
    model = contract(
        checkpoint={"name": hostile[0], "digest": "dd" * 32, "family": hostile[3]},
        backend={"name": hostile[7], "version": hostile[1]},
    )
    run = make_run(tmp_path / "r", hostile, columns, contract=model)
    file = report(
        run, out=tmp_path / "<img src=x onerror=x>.html", title=hostile[1], color=names[0], date=DATE, quiet=True
    )
    with opened(browser, file) as found:
        page = found.page
        page.locator(".wb-exchange summary").click()
        page.get_by_label("Name of the selection").fill(hostile[0])
        page.get_by_role("button", name="Keep selection").click()
        page.get_by_label("Search prompts").fill(hostile[0])
        page.get_by_label("Search prompts").fill("")
        wrong = page.evaluate(
            """(texts) => {
              const box = document.querySelector(".wb-table-scroll"), wrong = [];
              const press = (key) => box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
              press("Home");
              texts.forEach((text, i) => {
                if (i === 0) { press("ArrowDown"); press("ArrowUp"); }
                document.querySelector(".wb-text button")?.click();
                const now = document.querySelector(".wb-text bdi").textContent;
                if (now !== text) wrong.push([i, now.slice(0, 50)]);
                press("ArrowDown");
              });
              return wrong;
            }""",
            hostile,
        )
        assert wrong == []
        heads = page.locator(".wb-table th bdi").all_text_contents()
        assert [h for h in heads if h in names or h.endswith("…")] == [
            n if len(n) <= 60 else n[:60] + "…" for n in names
        ]
        page.mouse.move(640, 500)
        for option in range(3):
            page.get_by_label("Colour by").select_option(value=str(option))
        assert page.locator(".wb-eyebrow bdi").first.text_content() == hostile[1]
        assert page.locator("img, iframe, object, form, base, math").count() == 0
        found.check()


def test_a_tap_of_the_ribbon_opens_both_maps_and_keeps_the_selection(browser, tmp_path):
    rng = np.random.default_rng(0)
    taps = ("blocks.0.resid_post", "final_norm")
    states = {tap: rng.normal(size=(50, 16)) for tap in taps}
    texts = [f"p{i}" for i in range(50)]
    run = make_run(tmp_path / "a", texts, states=states, taps=taps)
    moved = {tap: s + 0.1 * rng.normal(size=s.shape) for tap, s in states.items()}
    other = make_run(tmp_path / "b", texts, states=moved, taps=taps, contract=int8_contract())
    maps = [project([run, other], tap, progress=False) for tap in taps]
    compared = compare(run, other, k=3, progress=False)
    with opened(browser, report(run, other, *maps, compared, out=tmp_path / "r.html", quiet=True)) as found:
        page = found.page
        assert page.locator(".wb-layer output").inner_text() == taps[0]
        page.locator(".wb-table tbody tr[data-row]").nth(3).click()
        page.get_by_role("button", name="Open the maps at final_norm").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".wb-layer output")).to_have_text("final_norm")
        assert found.selection()["rows"] == [3]
        page.get_by_role("button", name="show", exact=True).first.click()
        assert found.selection()["rows"] == [max(compared.worst, key=lambda one: one.error).row_a]
        found.check()


def test_small_and_flat_maps_give_a_sensible_page(browser, tmp_path):
    cases = {
        "one": make_run(tmp_path / "one", ["only"]),
        "two": make_run(tmp_path / "two", ["first", "second"]),
        "equal": make_run(tmp_path / "equal", [f"p{i}" for i in range(9)], states=np.ones((9, 16))),
        "nan": make_run(tmp_path / "nan", ["a", "b", "c"], states=np.full((3, 16), np.nan)),
        "none": make_run(tmp_path / "none", ["a", "b"], lengths=[0, 0], positions="all"),
    }
    for name, run in cases.items():
        with opened(browser, report(run, out=tmp_path / f"{name}.html", quiet=True)) as found:
            assert found.page.locator("#wb-root").get_attribute("data-ready") == "true", name
            if name != "none":
                assert found.page.locator(".wb-table").get_attribute("aria-rowcount") == str(run.n_rows)
            if name == "nan":
                assert "3 rows without coordinates" in found.page.locator(".wb-pane-note").inner_text()
            found.check()


def test_the_same_bytes_work_in_a_frame_that_cannot_reach_its_host(browser, made, tmp_path):
    host = tmp_path / "host.html"
    frame = made[0].read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
    host.write_text(
        '<!doctype html><div id="wb-root" data-ready="x"></div>'
        f'<iframe sandbox="allow-scripts" width="1200" height="900" srcdoc="{frame}"></iframe>'
    )
    with opened(browser, host) as found:
        inner = found.page.frames[1]
        inner.wait_for_selector('#wb-root[data-ready="true"]', state="attached")
        expect(inner.locator(".wb-pane").first).to_have_attribute("data-draws", re.compile("[1-9]"))
        assert inner.locator(".wb-points").first.evaluate(COLOURED) > 1000
        assert (
            inner.evaluate("(() => { try { parent.document.title; return 'reached'; } catch { return 'refused'; } })()")
            == "refused"
        )
        inner.locator(".wb-toggle").click()
        inner.get_by_label("Search prompts").fill("odd kind [0-2]$")
        expect(inner.locator(".wb-table")).not_to_have_attribute("aria-rowcount", "400")  # the worker runs there too
        found.check()


def test_provenance_and_floor_are_on_the_page(seen):
    text = seen.page.locator(".wb-provenance").inner_text()
    for word in (
        "toy-model",
        "onnxruntime",
        "fp32",
        "int8",
        "padding",
        "right",
        "norm point",
        "prompt set",
        "joint",
        "floor not measured",
        DATE,
        "1,200",
        "seed",
    ):
        assert word in text, word
    plain = json.loads(seen.page.locator(".wb pre bdi").text_content())
    assert plain["groups"]["Model"]["weights"] == "dd" * 32
    assert plain["contracts"][1]["engine_id"] == "e2" * 32
