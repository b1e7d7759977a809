import gzip
import json
import math
import re

import numpy as np
import pytest
from hostile_strings import HOSTILE

from workbench.errors import ViewError
from workbench.escaping import escape, script_json, visible
from workbench.view.blocks import Blocks
from workbench.view.columns import colour_range, column_of
from workbench.view.page import policy, source_hash, write_page
from workbench.view.selections import (
    Selection,
    load_state,
    pack_mask,
    read_selection,
    save_state,
    state_path,
    unpack_mask,
)
from workbench.view.static_files import PARTS, script, style

LONE = ("\ud800", "a\udfffb", "\udc00\ud800")


@pytest.mark.parametrize("text", [*HOSTILE, *LONE])
def test_script_json_keeps_text_and_cannot_end_its_element(text):
    written = script_json({"t": text})
    assert not set(written) & set("<>&"), written
    assert written.isascii()
    assert json.loads(written)["t"] == text


@pytest.mark.parametrize("text", [*HOSTILE, *LONE])
def test_escaped_text_is_safe_in_markup_and_in_quotes(text):
    shown = escape(text)
    assert not set(shown) & set("<>\"'")
    shown.encode("utf-8")
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", shown)


def test_visible_shows_what_would_hide():
    assert visible("a\x1b\u202e\ud800\n") == "a\\u001b\\u202e\\ud800\\u000a"


def test_the_page_admits_its_own_script_and_style_and_nothing_else():
    page = write_page({"blocks": []}, b"", title="</title><script>").decode()
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")
    scripts = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert scripts == [script()]
    assert styles == [style()]
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    assert found.group(1) == policy()
    assert source_hash(script()) in policy()
    assert source_hash(style()) in policy()
    for directive in (
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "img-src data:",
        "worker-src blob:",
    ):
        assert directive in policy()
    assert "unsafe" not in policy()
    assert "</title><script>" not in page


BANNED = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "createContextualFragment",
    "DOMParser",
    "srcdoc",
    'setAttribute("style"',
    "localStorage",
    "sessionStorage",
    "indexedDB",
    "fetch(",
    "XMLHttpRequest",
    "WebSocket",
    "EventSource",
    "sendBeacon",
    "import(",
)


@pytest.mark.parametrize("part", PARTS)
def test_the_renderer_uses_nothing_that_reads_text_as_code_or_reaches_out(part):
    from importlib.resources import files

    source = (files("workbench.view") / "static" / part).read_text(encoding="utf-8")
    assert [word for word in BANNED if word in source] == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", source)
    assert "</script" not in source.lower()


def test_the_style_sheet_loads_nothing():
    assert "url(" not in style()
    assert "@import" not in style()
    assert len(script().encode()) + len(style().encode()) < 300_000


def test_blocks_come_back_aligned_and_equal():
    blocks = Blocks()
    arrays = [
        np.arange(3, dtype=np.float32),
        np.array([1.5, np.nan]),
        np.arange(5, dtype=np.uint8),
        np.arange(4, dtype=np.int32),
    ]
    texts = ["\ud800", "\x00\r\n", "é", None]
    for values in arrays:
        blocks.array(values)
    blocks.json(texts)
    data = blocks.joined()
    assert all(entry["at"] % 8 == 0 for entry in blocks.table)
    for values, entry in zip(arrays, blocks.table, strict=False):
        found = np.frombuffer(data[entry["at"] : entry["at"] + entry["size"]], "<" + entry["kind"])
        np.testing.assert_array_equal(found, values)
    last = blocks.table[-1]
    assert json.loads(gzip.decompress(data[last["at"] : last["at"] + last["size"]])) == texts
    with pytest.raises(TypeError, match="float16"):
        blocks.array(np.zeros(2, np.float16))


def test_big_endian_arrays_are_turned():
    blocks = Blocks()
    blocks.array(np.array([1.0, 2.0], ">f4"))
    np.testing.assert_array_equal(np.frombuffer(blocks.joined(), "<f4"), [1, 2])


def test_numbers_stay_numbers_and_few_whole_numbers_become_classes():
    assert column_of("x", [1.5, None, 2.0]).labels is None
    assert math.isnan(column_of("x", [1.5, None, 2.0]).values[1])
    assert column_of("x", list(range(50))).labels is None
    assert column_of("x", [0, 1, 10] * 5).labels == ("0", "1", "10")
    mixed = column_of("x", ["b", None, "a", True])
    assert mixed.labels == ("True", "a", "b")
    assert mixed.values.tolist() == [2, 3, 1, 0]
    assert column_of("x", ["NA", "EU", None]).labels == ("EU", "NA")  # Namibia and North America are values


def test_whole_numbers_come_back_exactly():
    assert column_of("population", [37_393_129, 1, *range(40)]).values[0] == 37_393_129
    assert column_of("x", [0.1, 0.2]).values.dtype == np.float32


def test_signed_colours_are_even_around_zero_and_outliers_do_not_flatten_the_rest():
    assert colour_range(np.array([-1.0, 3.0])) == {"low": -3.0, "high": 3.0, "signed": True, "clipped": False}
    assert colour_range(np.array([np.nan, np.inf]))["high"] == 1.0
    tailed = colour_range(np.concatenate((np.linspace(1, 2, 1000), [1e6])))
    assert tailed["clipped"]
    assert tailed["high"] < 3


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_masks_survive_packing(n):
    mask = np.random.default_rng(n).random(n) < 0.5
    np.testing.assert_array_equal(unpack_mask(pack_mask(mask), n), mask)


def test_selections_survive_as_text():
    selection = Selection(rows=np.array([1, 5]), run="r", named={"a\u202e": np.array([2])})
    back = read_selection(selection.to_json(), run="r")
    assert back.rows.tolist() == [1, 5]
    assert back.named["a\u202e"].tolist() == [2]
    assert back.mask(6).nonzero()[0].tolist() == [1, 5]
    assert read_selection("[3, 1, 1]").rows.tolist() == [1, 3]
    with pytest.raises(ViewError, match="below 5"):
        back.mask(5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1.5]",
        "[-1]",
        "[true]",
        '{"workbench":"selection","version":2,"rows":[]}',
        "[" * 10_000,
        '{"workbench":"selection","version":1}',
    ],
)
def test_what_is_no_selection_is_refused(text):
    with pytest.raises(ViewError):
        read_selection(text)


def test_a_selection_of_another_run_is_refused():
    with pytest.raises(ViewError, match="belong to run b"):
        read_selection(Selection(rows=np.array([1]), run="a").to_json(), run="b")


def test_state_keeps_fields_it_does_not_know(tmp_path):
    run = tmp_path / "run"
    assert load_state(run) == {}
    save_state(run, {"colour": "x"})
    state_path(run).write_text(json.dumps({**load_state(run), "later": 1}))
    save_state(run, {"colour": "y"})
    assert load_state(run) == {"colour": "y", "later": 1, "version": 1}
    state_path(run).write_text('{"version": 9}')
    with pytest.raises(ViewError, match="version 1"):
        load_state(run)
    assert [p.name for p in tmp_path.iterdir()] == ["run.views.json"]
