"""What the explorer offers in a real JupyterLab: filters, sizes, tokens, probes, the compare view; keyboard alone."""

from __future__ import annotations

import base64
import itertools
import re

import numpy as np
import pytest
from hostile_strings import HOSTILE
from lab_session import lab_page, wait_for
from view_browser import COLOURED, browser_test, expect, inside
from view_runs import int8_contract, make_run

pytestmark = [browser_test, pytest.mark.slow]
SETUP = """
from hostile_strings import HOSTILE
from workbench.store import open_run
from workbench.view import explore
class Hostile:
    def token_text(self, token): return HOSTILE[token % len(HOSTILE)]
"""
SHOW = 'a = open_run("../a")\nview = explore(a, umap=False)\nview'
N = 500


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 8, N)
    states = rng.normal(size=(8, 16))[kind] * 2 + rng.normal(size=(N, 16))
    texts = [f"prompt {i} of kind {k}" for i, k in enumerate(kind)]
    columns = {"kind": [f"kind {k}" for k in kind], "value": (states[:, 0] + kind).tolist()}
    make_run(folder / "a", texts, columns, states=states)
    make_run(folder / "b", texts, states=states + 0.1 * rng.normal(size=states.shape), contract=int8_contract())
    make_run(folder / "tokens", [f"text {i}" for i in range(20)], lengths=np.full(20, 10), positions="all", width=8)
    with lab_page(folder) as found:
        found.kind, found.value = kind, np.array(columns["value"])
        found.open("explorer.ipynb", [SETUP, SHOW])
        found.run_all()
        found.shown()
        yield found
        assert found.foreign == []


@pytest.fixture
def seen(lab):
    lab.page.locator(".wb-widget .wb-maps").scroll_into_view_if_needed()
    lab.page.mouse.move(2, 2)  # no row is hovered
    lab.do("view.clear()")
    expect(lab.page.locator(".wb-count")).to_have_text("nothing selected")
    expect(lab.page.locator(".wb-filter-line")).to_be_hidden()
    return lab


def rows_listed(lab):
    return int(lab.page.locator(".wb-table").get_attribute("aria-rowcount"))


def test_charts_filter_the_map_the_table_and_one_another(seen):
    page = seen.page
    page.get_by_text("Filter by column").click()
    box = page.locator(".wb-hist").first.bounding_box()
    seen.draw_line([(box["x"] + 0.5 * box["width"], box["y"] + 20), (box["x"] + box["width"] + 5, box["y"] + 20)])
    expect(page.locator(".wb-filter-line")).to_contain_text("filtered by value")
    low = float(page.get_by_label("smallest value shown of value").input_value())
    assert abs(rows_listed(seen) - int((seen.value >= low).sum())) <= 2  # the field shows four figures
    page.locator(".wb-bars button").filter(has_text="kind 3").click()
    both = int(((seen.value >= low) & (seen.kind == 3)).sum())
    assert abs(rows_listed(seen) - both) <= 2
    expect(page.locator(".wb-bars button").filter(has_text="kind 3")).to_have_attribute("aria-pressed", "true")
    wait_for(lambda: "kind" in seen.ask("view.place.get('filters', {})"), "the filters in Python")
    assert "kind 3" not in seen.ask("view.place['filters']['kind']['off']")
    wait_for(
        lambda: (
            "filters" in seen.ask("__import__('workbench.view.selections').view.selections.load_state(a.path)['place']")
        ),
        "the saved filters",
    )
    page.get_by_role("button", name="Clear filters").click()
    assert rows_listed(seen) == N
    page.get_by_text("Filter by column").click()
    wait_for(lambda: seen.ask("view.place['filters']") == {}, "the end of the filters in Python")


def test_size_follows_a_column(seen):
    page = seen.page
    before = page.locator(".wb-points").evaluate("(c) => c.toDataURL()")
    page.get_by_label("Size by").select_option(label="value")
    expect(page.locator(".wb-sizes")).to_contain_text("size: value")
    wait_for(lambda: page.locator(".wb-points").evaluate("(c) => c.toDataURL()") != before, "the sizes")
    wait_for(lambda: seen.ask("view.place['size']") == "value", "the size in Python")
    page.get_by_label("Size by").select_option(label="all alike")
    wait_for(lambda: page.locator(".wb-points").evaluate("(c) => c.toDataURL()") == before, "the map as it was")


def test_a_probe_of_one_selection_against_another_is_fitted_and_shown(seen):
    page = seen.page
    seen.do("import numpy as np; kind = np.array(a.prompts.columns['kind'])")
    page.get_by_text("Selections: keep, copy, paste").click()
    for name, number in (("<b>ones</b>", 1), ("twos", 2)):
        seen.do(f"view.selected = np.flatnonzero(kind == 'kind {number}')")
        expect(page.locator(".wb-count")).to_have_text(f"{int((seen.kind == number).sum())} selected")
        page.get_by_label("Name of the selection").fill(name)
        page.get_by_role("button", name="Keep selection").click()
    page.get_by_role("button", name="Fit probe").click()
    expect(page.locator(".wb-live-sections h2").first).to_contain_text("linear probe", timeout=120_000)
    assert page.evaluate("document.querySelectorAll('.wb-live-sections b').length") == 0
    assert seen.ask("[view.given().probes[0].classes, view.given().probes[0].score > 0.8]") == [
        ["<b>ones</b>", "twos"],
        True,
    ]
    assert seen.ask("sorted(view.selections)") == ["<b>ones</b>", "twos"]
    page.get_by_text("Selections: keep, copy, paste").click()


def test_everything_a_pointer_selects_can_be_selected_by_keyboard(seen):
    page, xy = seen.page, seen.places()
    page.locator(".wb-over").focus()
    at = seen.frame()
    middle = np.array([at[0], at[1]])
    page.keyboard.press("r")
    for key, times in (("ArrowRight", 9), ("ArrowUp", 7)):
        for _ in range(times):
            page.keyboard.press(key)
    expect(page.locator(".wb-live")).to_contain_text("Rectangle")
    page.keyboard.press("Enter")
    corners = middle + np.array([(0, 0), (90, 0), (90, -70), (0, -70)])
    first = set(np.flatnonzero(inside(to_map(corners, at), xy)).tolist())
    assert len(first) > 5
    wait_for(lambda: set(seen.ask("view.selected.tolist()")) == first, "the rectangle")
    assert set(seen.ask("view.mask.nonzero()[0].tolist()")) == first
    corners = [middle]
    page.keyboard.press("l")
    for key, step in (("ArrowLeft", (-80, 0)), ("ArrowDown", (0, 80)), ("ArrowRight", (130, 0))):
        for _ in range(abs(sum(step)) // 10):
            page.keyboard.press(key)
        corners.append(corners[-1] + np.array(step))
        page.keyboard.press("Space")
    page.keyboard.press("Shift+Enter")
    lasso = set(np.flatnonzero(inside(to_map(np.array(corners), at), xy)).tolist())
    assert len(lasso - first) > 5
    wait_for(lambda: set(seen.ask("view.selected.tolist()")) == first | lasso, "the union")
    page.keyboard.press("r")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Alt+Enter")
    corners = middle + np.array([(0, 0), (40, 0), (40, -40), (0, -40)])
    less = (first | lasso) - set(np.flatnonzero(inside(to_map(corners, at), xy)).tolist())
    wait_for(lambda: set(seen.ask("view.selected.tolist()")) == less, "the difference")
    page.get_by_role("button", name="Invert").focus()
    page.keyboard.press("Enter")
    wait_for(lambda: set(seen.ask("view.selected.tolist()")) == set(range(N)) - less, "the inverse")
    page.locator(".wb-over").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".wb-count")).to_have_text("nothing selected")
    page.get_by_label("Search prompts").fill("kind 4")
    page.locator(".wb-table-scroll").focus()
    page.keyboard.press("Control+a")
    wait_for(lambda: seen.ask("view.selected.tolist()") == np.flatnonzero(seen.kind == 4).tolist(), "the rows listed")
    page.get_by_label("Search prompts").fill("")


def to_map(points, frame):
    mx, my, tx, ty, scale = frame[:5]
    return np.column_stack((tx + (points[:, 0] - mx) / scale, ty - (points[:, 1] - my) / scale))


FOCUS = """() => {
  const node = document.activeElement;
  const style = getComputedStyle(node);
  const inside = node.closest(".wb-widget") !== null;
  const name = node.getAttribute("aria-label") || node.textContent.slice(0, 40);
  return [inside, name, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
}"""


def test_every_stop_of_the_tab_key_shows_its_focus(seen):
    seen.page.get_by_label("Colour by").focus()
    stops = []
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        within, name, visible = seen.page.evaluate(FOCUS)
        if not within:
            break
        stops.append((name, visible))
    names = " ".join(name for name, _ in stops)
    for wanted in ("Size by", "Search prompts", "Lasso", "Invert", "Map:", "Table of rows"):
        assert wanted in names, names
    assert [name for name, visible in stops if not visible] == []


PIXELS = """async ([data, places]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  return places.map(([x, y]) => [...pen.getImageData(Math.round(x), Math.round(y), 1, 1).data.slice(0, 3)]);
}"""


# sRGB to OKLab by way of cone responses (Ottosson 2020)
CONES = np.array(
    [
        [0.4122214708, 0.2119034982, 0.0883024619],
        [0.5363325363, 0.6806995451, 0.2817188376],
        [0.0514459929, 0.1073969566, 0.6299787005],
    ]
)
AXES = np.array(
    [
        [0.2104542553, 1.9779984951, 0.0259040371],
        [0.7936177850, -2.4285922050, 0.7827717662],
        [-0.0040720468, 0.4505937099, -0.8086757660],
    ]
)


def oklab(rgb):
    """Perceptual coordinates of sRGB bytes [colour, 3]."""
    x = np.asarray(rgb) / 255
    x = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    return np.cbrt(x @ CONES) @ AXES


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_classes_stay_apart_under_simulated_colour_blindness(seen, theme):
    page = seen.page
    seen.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
    expect(page.locator(".wb-widget")).to_have_attribute("data-theme", theme.lower())
    page.get_by_label("Colour by").select_option(label="kind")
    swatches = page.locator(".wb-legend .wb-swatch")
    expect(swatches).to_have_count(8)
    swatches.first.scroll_into_view_if_needed()
    boxes = [swatches.nth(i).bounding_box() for i in range(8)]
    places = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    devtools = page.context.new_cdp_session(page)
    least = {}
    try:
        for kind in ("none", "protanopia", "deuteranopia", "tritanopia"):
            devtools.send("Emulation.setEmulatedVisionDeficiency", {"type": kind})
            data = base64.b64encode(page.screenshot()).decode()
            colours = page.evaluate(PIXELS, [data, places])
            least[kind] = min(np.linalg.norm(a - b) for a, b in itertools.combinations(oklab(colours), 2))
            if kind == "none":
                plain = colours
            else:
                assert colours != plain  # the simulation is on
    finally:
        devtools.send("Emulation.setEmulatedVisionDeficiency", {"type": "none"})
        seen.command("apputils:change-theme", {"theme": "JupyterLab Light"})
        expect(page.locator(".wb-widget")).to_have_attribute("data-theme", "light")
    print(theme, {kind: round(float(size), 3) for kind, size in least.items()})
    assert min(least.values()) > 0.05, least  # about two and a half just noticeable differences


def test_the_compare_view_opens_in_place_and_keeps_the_selection(seen):
    page = seen.page
    seen.do("view.selected = [3, 5, 8]")
    page.get_by_role("button", name="Compare with").click()
    page.locator(".wb-note button").filter(has_text="b").first.click()
    expect(page.locator(".wb-pane")).to_have_count(2)
    expect(page.locator(".wb-pane .wb-badge").first).to_have_text("joint")
    expect(page.locator(".wb-count")).to_have_text("3 selected")
    expect(page.get_by_role("heading", name="fp32 against int8")).to_be_visible(timeout=120_000)
    for pane in (0, 1):
        wait_for(lambda pane=pane: page.locator(".wb-points").nth(pane).evaluate(COLOURED) > 20, "both maps")
    expect(page.get_by_role("button", name="Compare with")).to_be_hidden()
    assert seen.ask("view.selected.tolist()") == [3, 5, 8]
    assert seen.ask("len(view.given().runs)") == 2


HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def revealed(text, limit=60):
    """What the strip shows: characters that hide as escapes, cut by UTF-16 units as a browser counts them."""
    units = HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-16-le")
    return units[: 2 * limit].decode("utf-16-le", "replace") + ("…" if len(units) > 2 * limit else "")


def test_token_texts_stay_text_in_strip_table_and_hover(lab):
    lab.close()
    lab.open(
        "tokens.ipynb", [SETUP, 'view = explore(open_run("../tokens"), tokenizer=Hostile(), background=False)\nview']
    )
    lab.run_all()
    lab.shown()
    page = lab.page
    page.locator(".wb-maps").scroll_into_view_if_needed()
    ids = lab.ask("view.run.tokens.tolist()")
    heads = page.locator(".wb-table thead th").all_inner_texts()
    column = next(i for i, head in enumerate(heads) if head.strip().startswith("token"))
    page.locator(".wb-table-scroll").focus()
    for row in (0, 7, 15, 23, 31, 39, 47):
        lab.do(f"view.selected = [{row}]")
        expect(page.locator(".wb-reading h3")).to_contain_text(f"row {row}")
        first = 10 * (row // 10)
        pieces = page.locator(".wb-strip .wb-piece")
        expect(pieces).to_have_count(10)
        expect(page.locator(".wb-here")).to_have_attribute("data-row", str(row))
        assert (
            page.locator(".wb-strip").evaluate(
                "(n) => n.querySelectorAll(':scope > :not(button), button > :not(bdi), bdi *').length"
            )
            == 0
        )
        shown = pieces.evaluate_all("(nodes) => nodes.map((n) => n.textContent)")
        colours = pieces.evaluate_all("(nodes) => nodes.map((n) => getComputedStyle(n).borderBottomColor)")
        assert set(colours) == {"rgb(47, 111, 176)"}  # the colour of every row in a map of one colour
        assert shown == [revealed(HOSTILE[token % len(HOSTILE)]) for token in ids[first : first + 10]]
    page.get_by_label("selected only").check()
    for row in (0, 9, 24):
        lab.do(f"view.selected = [{row}]")
        cell = page.locator(f'.wb-table tr[data-row="{row}"] td').nth(column)
        expect(cell).to_be_visible()
        token = HOSTILE[ids[row] % len(HOSTILE)]
        assert cell.text_content() == (token if len(token) <= 300 else token[:300] + "…")
    page.get_by_label("selected only").uncheck()
    page.locator(".wb-over").focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.locator(".wb-tip").evaluate("(n) => n.querySelectorAll('bdi *, script, img, svg, a').length") == 0
    assert page.evaluate("window.__pwned__ === undefined")
    page.get_by_label("Colour by").select_option(index=0)
    assert lab.problems == [] or all("__pwned__" not in text for text in lab.problems)
