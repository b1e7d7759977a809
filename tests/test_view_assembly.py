"""What a report file holds, read from its bytes: sizes, redaction, provenance, words, determinism."""

import argparse
import base64
import gzip
import json
import re

import numpy as np
import pytest
from view_runs import contract, int8_contract, make_run

from workbench.analysis import cluster, compare, fit_probe, project
from workbench.analysis.repeating import make_floor
from workbench.errors import ViewError
from workbench.view import report
from workbench.view.commands import add_commands

DATE = "2026-01-02"
QUIET = {"progress": False}


def unpack(path):
    """The document of a page and its blocks, JSON blocks parsed."""
    page = path.read_text(encoding="utf-8")
    doc = json.loads(re.search(r'id="wb-doc">(.*?)</script>', page, re.DOTALL).group(1))
    data = base64.b64decode(re.search(r'id="wb-bytes">(.*?)</script>', page, re.DOTALL).group(1))
    blocks = []
    for entry in doc["blocks"]:
        part = data[entry["at"] : entry["at"] + entry["size"]]
        part = gzip.decompress(part) if entry["gzip"] else part
        blocks.append(json.loads(part) if entry["kind"] == "json" else np.frombuffer(part, "<" + entry["kind"]))
    views = doc["views"]
    return doc | views[0] | {"title": doc["title"]}, blocks


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 4, 120)
    states = rng.normal(size=(4, 16))[kind] * 2 + rng.normal(size=(120, 16))
    texts = [f"CANARYtext{i} of kind CANARYword{k}" for i, k in enumerate(kind)]
    columns = {"CANARYcolumn": [f"CANARYvalue{k}" for k in kind], "height": [float(v) for v in states[:, 0]]}
    named = {"checkpoint": {"name": "CANARYmodel", "digest": "dd" * 32}}
    run = make_run(folder / "a", texts, columns, states=states, contract=contract(**named))
    other = make_run(folder / "b", texts, states=states * 1.01, contract={**int8_contract(), **named})
    again = make_run(folder / "c", texts, states=states * (1 + 1e-7 * rng.normal(size=states.shape)))
    return run, other, make_floor(run, [("same engine", again)], **QUIET)


@pytest.fixture(scope="module")
def results(pair):
    run, other, floor = pair
    return (
        project([run, other], "final_norm", **QUIET),
        cluster(run, "final_norm", k=4, **QUIET),
        fit_probe(run, "final_norm", "height", shuffles=3),
        fit_probe(run, "final_norm", "CANARYcolumn", shuffles=3),
        compare(run, other, floor=floor, **QUIET),
    )


@pytest.fixture(scope="module")
def full(pair, results, tmp_path_factory):
    return report(*pair[:2], *results, out=tmp_path_factory.mktemp("full") / "r.html", date=DATE, quiet=True)


def test_the_same_input_gives_the_same_bytes(pair, results, full, tmp_path):
    again = report(*pair[:2], *results, out=tmp_path / "other name.html", date=DATE, quiet=True)
    assert again.read_bytes() == full.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["other name.html"]


def test_coordinates_and_texts_are_those_of_the_results(pair, results, full):
    doc, blocks = unpack(full)
    panes = doc["maps"][0]["frames"][0]["panes"]
    for number, pane in enumerate(panes):
        np.testing.assert_array_equal(blocks[pane["xy"]].reshape(-1, 2), results[0].of_run(number))
    assert tuple(blocks[doc["prompts"]["texts"]]) == pair[0].prompts.texts
    names = [column["name"] for column in doc["columns"]]
    assert {"CANARYcolumn", "height", "cluster", "error at final_norm", "height, held-out at final_norm"} <= set(names)
    error = blocks[doc["columns"][names.index("error at final_norm")]["values"]]
    np.testing.assert_allclose(error, 0.01, rtol=1e-3)


def test_the_headline_says_the_numbers_that_the_results_hold(results, full):
    doc, _ = unpack(full)
    probe, drift = results[2], results[4]
    assert doc["headline"].startswith("120 prompts through CANARYmodel: a linear probe reads height at final_norm")
    assert f"R² {probe.score:.2f}" in doc["headline"]
    assert "int8 lies 1 % from fp32 at final_norm" in doc["headline"]
    told = re.search(r"([\d,]+) times the noise floor", doc["headline"]).group(1)
    assert float(told.replace(",", "")) == pytest.approx(drift.verdicts["final_norm"].multiple, rel=0.01)
    sections = [section["type"] for section in doc["sections"]]
    assert sections == ["probe", "probe", "comparison", "clusters", "provenance"]


def test_without_a_floor_the_page_says_so_and_claims_nothing(pair, tmp_path):
    run, other, _ = pair
    path = report(run, other, compare(run, other, **QUIET), out=tmp_path / "r.html", quiet=True)
    doc, _ = unpack(path)
    written = json.dumps(doc)
    section = next(s for s in doc["sections"] if s["type"] == "comparison")
    assert section["floor"].startswith("Floor not measured")
    assert "(floor not measured)" in doc["headline"]
    assert ["noise floor", "floor not measured"] in doc["sections"][-1]["groups"][-1]["facts"]
    assert not re.search(r"\b(moved|drifted|significant|above the floor|times the (noise )?floor\W)", doc["headline"])
    assert section["rows"][0][1:3] == ["floor not measured", None]
    assert "above the floor" not in written


def test_equal_runs_are_called_bit_equal(pair, tmp_path):
    run, _, floor = pair
    twin = make_run(tmp_path / "t", run.prompts.texts, states=run.tap("final_norm")[:], contract=int8_contract())
    doc, _ = unpack(report(run, twin, compare(run, twin, floor=floor, **QUIET), out=tmp_path / "r.html", quiet=True))
    assert "gives the same bits" in doc["headline"]


@pytest.mark.parametrize(("redact", "kept"), [("all", 0), (9, 9)])
def test_redacted_text_is_nowhere_in_the_file(pair, results, tmp_path, redact, kept):
    path = report(
        *pair[:2], *results, out=tmp_path / "r.html", redact=redact, title="CANARYtitle" if redact == "all" else None,
        date=DATE, quiet=True,
    )  # fmt: skip
    doc, blocks = unpack(path)
    assert "redacted" in doc["redacted"]
    texts = [block for block in blocks if isinstance(block, list)]
    everything = json.dumps(texts) + json.dumps(doc) + path.read_text(encoding="utf-8")
    for word in ("CANARYtext1", "CANARYword", "CANARYvalue", "CANARYmodel", "CANARYtitle"):
        assert word not in everything, word
    if redact == "all":
        assert "CANARY" not in everything
    else:
        assert set(blocks[doc["prompts"]["texts"]]) == {"CANARYtex"}
    assert pair[0].prompts.content_hash not in everything  # the hash of a short prompt could be guessed
    shown = [text for text in blocks[doc["prompts"]["texts"]] if text]
    assert all(len(text) <= kept for text in shown)


def test_a_kept_column_stays_in_full(pair, tmp_path):
    path = report(pair[0], out=tmp_path / "r.html", redact="all", keep_columns=["CANARYcolumn"], quiet=True)
    doc, blocks = unpack(path)
    assert doc["columns"][0]["name"] == "CANARYcolumn"
    assert blocks[doc["columns"][0]["labels"]][0] == "CANARYvalue0"
    assert "CANARYtext" not in json.dumps([b for b in blocks if isinstance(b, list)])


def test_ids_of_a_redacted_page_are_salted(tmp_path):
    import hashlib

    from workbench.prompts import PromptSet
    from workbench.view.redaction import redaction

    prompts = PromptSet(texts=("a", "b"), ids=("alice", "bob"))
    rule = redaction("all", columns=(), prompts=[prompts])
    assert rule.token("alice") != rule.token("bob")
    assert rule.token("alice") not in hashlib.sha256(b"alice").hexdigest()
    other = redaction("all", columns=(), prompts=[PromptSet(texts=("a", "c"), ids=("alice", "bob"))])
    assert other.token("alice") != rule.token("alice")
    for bad in (0, -1, True, "some", 1.5):
        with pytest.raises(ViewError, match="redact"):
            redaction(bad, columns=(), prompts=[prompts])


def test_no_path_user_or_host_is_written(pair, results, full):
    import getpass
    import platform

    written = full.read_text(encoding="utf-8")
    assert str(pair[0].path) not in written
    assert "/tmp/" not in written
    doc = json.dumps(unpack(full)[0])
    for name in (platform.node(), getpass.getuser()):
        assert len(name) <= 4 or name not in doc


def test_paths_in_a_contract_are_left_out(tmp_path):
    named = contract(build={"log": "wrote /home/someone/engines/x", "tools": {"python": "3.11"}}, place="C:\\work\\x")
    doc, _ = unpack(report(make_run(tmp_path / "a", ["x"] * 6, contract=named), out=tmp_path / "r.html", quiet=True))
    assert "/home/" not in json.dumps(doc)
    assert "C:" not in json.dumps(doc)
    assert doc["sections"][-1]["json"]["contracts"][0]["build"]["tools"] == {"python": "3.11"}


def words_of_docstrings():
    import functools
    import inspect as inspect_module

    text = " ".join(
        inspect_module.getdoc(m) or "" for m in (argparse, functools, inspect_module, json, re, dict, list, str)
    )
    text += " ".join(inspect_module.getdoc(v) or "" for m in (argparse, functools, json, re) for v in vars(m).values())
    return re.findall(r"[A-Za-z]+", text)


@pytest.mark.parametrize(("per_point", "limit"), [(4, 800_000), (40, 1_800_000)])
def test_ten_thousand_points_in_two_maps_stay_within_the_size_table(tmp_path, per_point, limit):
    rng = np.random.default_rng(0)
    words = np.array(words_of_docstrings())
    texts = [" ".join(words[rng.integers(0, len(words), per_point)]) + f" {i}" for i in range(10_000)]
    states = rng.normal(size=(10_000, 16))
    columns = {"kind": [f"k{i % 8}" for i in range(10_000)], "value": rng.normal(size=10_000).tolist()}
    run = make_run(tmp_path / "a", texts, columns, states=states)
    other = make_run(tmp_path / "b", texts, states=states + 0.01, contract=int8_contract())
    path = report(run, other, out=tmp_path / "r.html", quiet=True)
    assert path.stat().st_size <= limit
    page = path.read_text(encoding="utf-8")
    assert len(re.findall(r"<script(?![^>]*type=\"(application/json|text/plain)\")", page)) == 1
    with pytest.raises(ViewError, match=r"at most 0\.1 MB"):
        report(run, other, out=tmp_path / "no.html", max_bytes=100_000, quiet=True)
    assert not (tmp_path / "no.html").exists()


def test_a_large_run_is_sampled_over_all_prompts_and_the_title_says_so(tmp_path):
    lengths = np.tile([1, 9], 50)
    run = make_run(tmp_path / "a", [f"p{i}" for i in range(100)], lengths=lengths, positions="all")
    doc, blocks = unpack(report(run, out=tmp_path / "r.html", limit=150, quiet=True))
    assert doc["mapTitle"] == "Map of 150 of 500 rows, seeded sample, spread over prompts"
    ids, prompt = blocks[doc["rows"]["ids"]], blocks[doc["rows"]["prompt"]]
    assert len(ids) == 150
    assert (np.diff(ids) > 0).all()
    np.testing.assert_array_equal(run.prompt_of_rows()[ids], np.unique(run.prompt_of_rows()[ids])[prompt])
    taken = np.bincount(run.prompt_of_rows()[ids], minlength=100)
    assert taken[1::2].min() >= 2  # of nine rows each, no prompt is left out or preferred by much
    assert taken[1::2].max() <= 4
    again, _ = unpack(report(run, out=tmp_path / "r2.html", limit=150, quiet=True))
    assert again["rows"] == doc["rows"]


def test_what_is_neither_run_nor_result_is_refused(pair, results, tmp_path):
    run, other, _ = pair
    with pytest.raises(ViewError, match="runs and results; got int"):
        report(run, 3, out=tmp_path / "r.html")
    with pytest.raises(ViewError, match="belong to the runs"):
        report(other, results[1], out=tmp_path / "r.html")
    with pytest.raises(ViewError, match="one or two runs"):
        report(run, other, run, out=tmp_path / "r.html")
    with pytest.raises(ViewError, match="'CANARYcolumn'"):
        report(run, out=tmp_path / "r.html", color="nope")
    assert not list(tmp_path.iterdir())


def run_verb(*arguments):
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    options = parser.parse_args([word for part in arguments for word in part])
    return options.run(options)


def test_the_command_writes_a_report(pair, tmp_path, capsys):
    run, other, floor = pair
    out = tmp_path / "r.html"
    floor.save(tmp_path / "floor.json")
    done = run_verb(
        ["report", str(run.path), str(other.path), "--out", str(out), "--color", "height", "--clusters", "3"],
        ["--floor", str(tmp_path / "floor.json")],
    )
    assert done == 0
    assert capsys.readouterr().out.strip() == str(out)
    doc, _ = unpack(out)
    assert [s["type"] for s in doc["sections"]] == ["comparison", "clusters", "provenance"]
    assert doc["columns"][doc["colour"]]["name"] == "height"
    with pytest.raises(ViewError, match="color"):
        run_verb(["report", str(run.path), "--out", str(out), "--color", "nope"])
