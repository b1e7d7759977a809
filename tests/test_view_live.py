"""The live view without a browser: what Python sees, keeps and sends."""

import json
import shutil
import threading

import numpy as np
import pytest
from hostile_strings import HOSTILE
from view_runs import int8_contract, make_run

from workbench.errors import ViewError
from workbench.view import explore
from workbench.view.selections import load_state, state_path, unpack_mask


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    states = {tap: rng.normal(size=(60, 16)) for tap in ("blocks.0.resid_post", "final_norm")}
    columns = {"kind": [f"k{i % 3}" for i in range(60)], "value": rng.normal(size=60).tolist()}
    texts = [f"prompt {i}" for i in range(60)]
    run = make_run(tmp_path / "a", texts, columns, states=states, taps=tuple(states))
    noisy = {tap: s + 0.01 for tap, s in states.items()}
    return run, make_run(tmp_path / "b", texts, states=noisy, taps=tuple(states), contract=int8_contract())


def test_selection_is_readable_settable_and_observed_once(runs):
    view = explore(runs[0], background=False)
    told = []
    view.on_select(lambda rows: told.append(rows.tolist()))
    view.selected = [5, 3, 5]
    assert view.selected.tolist() == [3, 5]
    assert view.mask.nonzero()[0].tolist() == [3, 5]
    assert unpack_mask(view.bits, 60).nonzero()[0].tolist() == [3, 5]
    view.select(view.mask)
    assert told == [[3, 5]]  # the same selection again is no event
    view.select([7], how="add")
    view.select(np.arange(60) < 4, how="subtract")
    assert view.selected.tolist() == [5, 7]
    view.invert()
    assert len(view.selected) == 58
    view.clear()
    assert view.selected.tolist() == []
    for bad in ([60], [-1], [1.5], np.zeros(3, bool)):
        with pytest.raises(ViewError):
            view.select(bad)
    with pytest.raises(ViewError, match="how"):
        view.select([1], how="and")


def test_a_selection_made_in_the_browser_arrives_as_row_ids(runs):
    view = explore(runs[0], background=False)
    mask = np.arange(60) % 7 == 0
    view.set_state({"bits": memoryview(np.packbits(mask, bitorder="little").tobytes())})
    np.testing.assert_array_equal(view.selected, np.flatnonzero(mask))


def test_rows_out_of_view_stay_selected_and_are_counted(runs):
    view = explore(runs[0], background=False, limit=20)
    drawn = set(view.rows.ids.tolist())
    view.selected = range(60)
    assert view.beyond == 40
    assert len(view.selected) == 60
    assert unpack_mask(view.bits, 20).all()
    assert set(range(60)) - drawn <= set(view.selected.tolist())


def test_what_was_done_comes_back_with_the_next_view(runs):
    view = explore(runs[0], background=False)
    view.selected = [1, 2]
    view.keep(HOSTILE[0])
    view.keep("evens", np.arange(60) % 2 == 0)
    view.place = {"method": "pca", "tap": "final_norm", "colour": "value", "camera": [0.5, -1.0, 2.0]}
    again = explore(runs[0], background=False)
    assert again.selected.tolist() == [1, 2]
    assert again.selections[HOSTILE[0]].tolist() == [1, 2]
    assert len(again.selections["evens"]) == 30
    assert again.place["camera"] == [0.5, -1.0, 2.0]
    assert again.place["colour"] == "value"
    state = load_state(runs[0].path)
    assert state["run"] == runs[0].manifest.run_id
    state_path(runs[0].path).write_text("{")
    third = explore(runs[0], background=False)
    assert "could not be read" in third.status["text"]
    third.selected = [4]
    assert state_path(runs[0].path).read_text() == "{"  # what cannot be read is not overwritten


def test_background_work_adds_taps_comparison_and_stores_maps(runs):
    run, other = runs
    view = explore(run, other, umap=False)
    view.wait(120)
    assert view.status["text"] == ""
    taps = [frame["tap"] for frame in view.maps["maps"][0]["frames"]]
    assert taps == ["blocks.0.resid_post", "final_norm"]
    assert [c["name"] for c in view.maps["columns"]] == ["error at blocks.0.resid_post", "error at final_norm"]
    assert view.sections[0]["type"] == "comparison"
    assert "Floor not measured" in view.sections[0]["floor"]
    kept = sorted(p.name for p in run.path.with_name("a.maps").iterdir())
    assert len(kept) == 4  # coordinates and their description, for each tap
    again = explore(run, other, umap=False)
    again.wait(120)
    assert again.map_buffer == view.map_buffer


def test_a_quick_first_map_is_replaced_by_the_measured_one(runs, monkeypatch):
    from workbench.view import framing

    measured = explore(*runs, umap=False, background=False)
    shutil.rmtree(runs[0].path.with_name("a.maps"))
    monkeypatch.setattr(framing, "LARGE", 1)
    started = threading.Event()
    monkeypatch.setattr("workbench.view.background.Jobs._one", lambda self, step, cancel: started.wait(60) and "")
    quick = explore(*runs, umap=False)
    assert quick.maps["maps"][0]["frames"][0]["note"].endswith("quality not yet measured")
    first = np.frombuffer(quick.map_buffer[: 60 * 8], "<f4")
    np.testing.assert_allclose(first, np.frombuffer(measured.map_buffer[: 60 * 8], "<f4"), atol=1e-3)
    started.set()
    quick.wait(60)
    monkeypatch.undo()
    monkeypatch.setattr(framing, "LARGE", 1)
    view = explore(*runs, umap=False)
    view.wait(120)
    assert "trustworthiness" in view.maps["maps"][0]["frames"][-1]["note"]
    assert len(view.maps["maps"][0]["frames"]) == 2


def test_the_table_neighbours_and_a_probe_of_two_selections(runs):
    view = explore(runs[0], background=False)
    view.selected = [2, 0]
    table = view.table()
    assert table["row"] == [0, 2]
    assert table["text"] == ["prompt 0", "prompt 2"]
    assert table["kind"] == ["k0", "k2"]
    near = view.neighbours(7, k=5)
    states = runs[0].tap("final_norm")[:]
    cosine = states @ states[7] / np.linalg.norm(states, axis=1)
    assert near.tolist() == np.argsort(-cosine)[:5].tolist()
    value = np.array(runs[0].prompts.columns["value"])
    view.keep("low", np.flatnonzero(value < 0))
    view.keep("high", np.flatnonzero(value >= 0))
    probe = view.probe("low", "high", shuffles=2)
    assert set(probe.classes) == {"low", "high"}
    assert probe.n_rows == 60
    with pytest.raises(ViewError, match="share no row"):
        view.probe("low", "low")
    with pytest.raises(ViewError, match="'high'"):
        view.probe("low", "none")


def test_the_picture_shows_the_map_and_escapes_every_text(tmp_path):
    from view_browser import inside  # noqa: F401 - the module must import without a browser

    run = make_run(tmp_path / "r", [text or "empty" for text in HOSTILE[:40]], {HOSTILE[0]: list(HOSTILE[:40])})
    view = explore(run, background=False, color=HOSTILE[0])
    bundle = view._twin(view)
    for text in HOSTILE[:24]:
        assert text not in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert bundle["image/png"].startswith("iVBOR")
    assert "\x1b" not in bundle["text/plain"]


def test_to_html_writes_the_view_as_a_report(runs, tmp_path):
    view = explore(*runs, umap=False)
    view.wait(120)
    view.keep("mine", [4, 5])
    path = view.to_html(tmp_path / "v.html")
    text = path.read_text(encoding="utf-8")
    assert '"name":"mine","rows":[4,5]' in text
    assert "Floor not measured" in text
    assert str(tmp_path) not in text
    view._message(view, {"kind": "export"}, [])
    assert runs[0].path.with_name("a.html").is_file()


def test_a_view_of_hostile_texts_sends_them_as_data(tmp_path):
    run = make_run(tmp_path / "r", [text or "empty" for text in HOSTILE])
    view = explore(run, background=False)
    json.dumps(view.doc, allow_nan=False)
    assert all(isinstance(part, bytes) for part in (view.buffer, view.map_buffer, view.bits))


def test_steps_wait_their_turn_and_a_cancel_forgets_those_that_wait():
    from workbench.view.background import Jobs, Step

    said, ran = [], []
    started, go = threading.Event(), threading.Event()

    def slow(progress, cancel):
        started.set()
        progress(0, 0)
        assert go.wait(60)
        ran.append(cancel.is_set())

    jobs = Jobs(said.append)
    jobs.add([Step("slow", slow), Step("never", lambda progress, cancel: ran.append("never"))])
    jobs.begin()
    assert started.wait(60)
    jobs.cancel()
    jobs.add([Step("later", lambda progress, cancel: ran.append("later"))])
    go.set()
    jobs.wait(60)
    assert ran == [True, "later"]
    assert said[0] == {"text": "slow (1 more to come)", "done": 0, "total": 0, "running": True}
    assert any(state["text"].startswith("slow: waits until another fit ends") for state in said)
    assert said[-1] == {"text": "Cancelled; what is on screen stays.", "done": 0, "total": 0, "running": False}


def test_work_begins_when_the_first_map_is_drawn(runs, monkeypatch):
    monkeypatch.setattr("workbench.view.background.START_S", 600.0)
    view = explore(*runs, umap=False)
    assert len(view.maps["maps"][0]["frames"]) == 1
    view._message(view, {"kind": "drawn"}, [])
    view._jobs._thread.join(120)
    assert len(view.maps["maps"][0]["frames"]) == 2


def test_another_run_opens_beside_the_first_in_place(runs):
    view = explore(runs[0], umap=False)
    view.selected = [2, 7]
    told = []
    view.send = told.append
    view._message(view, {"kind": "siblings"}, [])
    [choice] = told[0]["runs"]
    assert choice["name"] == "b"
    assert "int8" in choice["title"]
    view._message(view, {"kind": "beside", "name": "../a"}, [])
    assert told[1]["kind"] == "error"
    assert "one of: b" in told[1]["text"]
    view._message(view, {"kind": "beside", "name": "b"}, [])
    view.wait(120)
    assert [len(frame["panes"]) for frame in view.maps["maps"][0]["frames"]] == [2, 2]
    assert "fitted together" in view.maps["lead"]
    assert view.sections[0]["title"] == "fp32 against int8"
    assert view.selected.tolist() == [2, 7]
    assert len(view.given().runs) == 2
    with pytest.raises(ViewError, match="two runs at most"):
        view.compare(runs[1])


def test_a_probe_asked_for_on_the_page_is_shown_and_goes_into_the_report(runs, tmp_path):
    view = explore(runs[0], background=False)
    view.keep(HOSTILE[0], range(20))
    view.keep("others", range(30, 50))
    view._message(view, {"kind": "probe", "first": HOSTILE[0], "second": "others"}, [])
    view.wait(120)
    assert view.sections[0]["title"] == f"What a linear probe reads: {HOSTILE[0]} or others"
    [probe] = view.given().probes
    assert probe.n_rows == 40
    assert len(view.maps["columns"]) >= 1
    told = []
    view.send = told.append
    view._message(view, {"kind": "probe", "first": "others", "second": "others"}, [])
    assert "share no row" in told[0]["text"]


def test_filters_and_size_are_kept_beside_the_run(runs):
    view = explore(runs[0], background=False)
    place = {"size": "value", "filters": {"kind": {"off": ["k1", None]}, "value": {"from": 0.5, "to": None}}}
    view.place = {**place, "unknown": 1}
    assert load_state(runs[0].path)["place"] == place
    assert explore(runs[0], background=False).place["filters"] == place["filters"]
