"""Pages of single results, and of several views: what they hold, and that they draw in a browser with no network."""

import json
import re

import numpy as np
import pytest
from hostile_strings import HOSTILE
from test_view_assembly import unpack
from view_browser import COLOURED, CONTRAST, browser_test, chromium, expect, opened
from view_runs import int8_contract, make_run

import workbench as wb
from workbench.analysis import (
    Head,
    churn,
    find_neighbours,
    learning_curve,
    logit_lens,
    pair_prompts,
    split_error,
    sweep_probe,
    transfer,
    transfer_sweep,
)
from workbench.analysis.repeating import make_floor
from workbench.cli import main
from workbench.errors import ViewError

DATE = "2026-01-02"
QUIET = {"progress": False}
TAPS = ("embed", "blocks.0.resid_post", "blocks.1.resid_post", "final_norm")
SECRET = "CANARY"
BROKEN = """[...document.querySelectorAll(".wb-chart svg *")].flatMap((node) => [...node.attributes])
  .filter((one) => /NaN|Infinity|undefined/.test(one.value)).map((one) => `${one.name} ${one.value}`)"""


def three(folder, texts, columns, ids=()):
    """A reference of four taps, its repeat, and a noisy build of the same prompts."""
    rng = np.random.default_rng(3)
    n = len(texts)
    clear = rng.normal(size=(n, 16))
    clear[:, 0] = columns["height"]
    shares = dict(zip(TAPS, (0, 0.4, 0.7, 1), strict=True))
    states = {tap: clear * share + (1 - share) * rng.normal(size=(n, 16)) for tap, share in shares.items()}

    def made(name, noise, seed, **contract_of):
        moved = np.random.default_rng(seed)
        rows = {tap: value + noise * moved.normal(size=value.shape) for tap, value in states.items()}
        return make_run(folder / name, texts, columns, states=rows, taps=TAPS, **contract_of)

    return made("a", 0, 0), made("again", 1e-4, 1), made("b", 0.4, 2, contract=int8_contract())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 2, 150)
    columns = {"height": rng.normal(size=150).tolist(), f"{SECRET}column": [f"{SECRET}{k}" for k in kinds]}
    columns[f"{SECRET}sign"] = [f"{SECRET}up" if h > 0 else f"{SECRET}down" for h in columns["height"]]
    return three(tmp_path_factory.mktemp("runs"), [f"{SECRET}text {i}" for i in range(150)], columns)


def results_of(runs, sign):
    a, again, b = runs
    probe, classes = (wb.fit_probe(a, "final_norm", name, shuffles=2, **QUIET) for name in ("height", sign))
    sweep = sweep_probe(a, "height", shuffles=2, **QUIET)
    groups = wb.cluster(a, "final_norm", k=4, **QUIET)
    floor = make_floor(a, [("same engine", again)], **QUIET)
    return [
        wb.project([a, b], "final_norm", **QUIET), wb.project(a, "final_norm", **QUIET), groups,
        wb.compare(a, b, floor=floor, **QUIET), probe, classes, sweep,
        *transfer_sweep(sweep, a, b, other_engine=True, repeat=again),
        transfer(classes, a, b, other_engine=True), find_neighbours(a, "final_norm", row=0), pair_prompts(a, 0, 1),
        logit_lens(a, taps=TAPS, head=Head(unembed=np.eye(16, dtype=np.float32)), **QUIET),
        churn(groups, wb.cluster(b, "final_norm", k=4, **QUIET)), split_error(a, again, b, **QUIET),
        learning_curve(probe, a),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def results(runs):
    return results_of(runs, f"{SECRET}sign")


def section(doc, kind):
    return next(one for one in doc["sections"] if one["type"] == kind)


def test_every_result_writes_a_page_of_its_own(results, tmp_path):
    for number, result in enumerate(results):
        path = result.to_html(tmp_path / f"{number}.html", date=DATE, quiet=True)
        doc, _ = unpack(path)
        assert doc["sections"][-1]["type"] == "provenance"
        facts = dict(doc["sections"][-1]["groups"][0]["facts"])
        assert facts["run"] or result.provenance.runs == ()
        assert (len(doc["maps"]) == 1) == (result.kind == "projection")
        if result.kind != "projection":
            assert len(doc["sections"]) == 2
        assert path.read_text().count('<script type="module">') == 1
        assert path.read_bytes() == result.to_html(tmp_path / "twin.html", date=DATE, quiet=True).read_bytes()


def test_a_result_with_its_run_brings_prompts_and_a_map(runs, results, tmp_path):
    near = next(result for result in results if result.kind == "neighbours")
    doc, blocks = unpack(near.to_html(tmp_path / "r.html", runs[0], date=DATE, quiet=True))
    assert doc["maps"]
    listed = section(doc, "result")["tables"][0]["rows"]
    assert [entry["row"] for entry in listed] == near.rows.tolist()
    assert listed[0]["cells"][0] == near.texts[0]
    assert blocks[doc["prompts"]["texts"]][3] == f"{SECRET}text 3"


def test_a_sweep_shows_score_by_tap_with_interval_and_control(runs, results, tmp_path):
    sweep = next(result for result in results if result.kind == "sweep")
    doc, _ = unpack(wb.report(runs[0], sweep, out=tmp_path / "r.html", quiet=True))
    (chart,) = section(doc, "probe")["layers"]["charts"]
    assert chart["places"] == list(TAPS)
    assert chart["series"][0]["values"] == [probe.score for probe in sweep.probes]
    assert chart["series"][0]["low"] == [probe.interval[0] for probe in sweep.probes]
    assert chart["band"]["high"] == [probe.control_range[1] for probe in sweep.probes]
    assert f"{sweep.best_corrected:.2f} corrected for choosing among taps" in doc["headline"].replace("−", "-")
    best = next(probe for probe in sweep.probes if probe.tap == sweep.best)
    lowest, highest = section(doc, "probe")["extremes"]
    assert highest["rows"][0]["row"] == best.rows[best.predictions[:, 0].argmax()]
    assert lowest["rows"][0]["row"] == best.rows[best.predictions[:, 0].argmin()]


def test_flips_between_builds_are_listed_by_prompt_against_the_repeat(runs, results, tmp_path):
    a, _, b = runs
    moves = [result for result in results if result.kind == "transfer" and result.task == "regression"]
    doc, _ = unpack(wb.report(a, b, *moves, wb.compare(a, b, **QUIET), out=tmp_path / "r.html", quiet=True))
    found = section(doc, "result")
    best = max(moves, key=lambda one: one.score_home)
    assert f"{len(best.flips):,} of 150 rows flip" in found["verdict"]["text"]
    assert "a repeat of the first engine 0 of 150" in found["verdict"]["text"]
    assert [row["row"] for row in found["tables"][1]["rows"]] == best.flips[:15].tolist()
    assert found["tables"][1]["rows"][0]["cells"][0] == a.prompts.texts[best.flips[0]]
    ribbon = {band["name"]: band for band in section(doc, "comparison")["ribbon"]}
    assert ribbon["probe agrees: height"]["values"] == [one.agreement for one in moves]
    assert ribbon["probe agrees: height"]["floors"] == [one.floor_agreement for one in moves]
    assert any(column["name"].startswith("move of the reading of height") for column in doc["columns"])
    without, _ = unpack(wb.report(a, b, transfer_of(results), out=tmp_path / "s.html", quiet=True))
    assert section(without, "result")["verdict"]["measured"] is False
    assert any(column["name"].startswith("reading of") for column in without["columns"])


def transfer_of(results):
    return next(result for result in results if result.kind == "transfer" and result.task == "classification")


def test_several_views_share_one_page_and_its_texts(runs, results, tmp_path):
    a, again, b = runs
    probe = next(result for result in results if result.kind == "probe")
    path = wb.report([a, b], [a, again], [probe], out=tmp_path / "r.html", title="Two builds", date=DATE, quiet=True)
    page = path.read_text()
    doc = json.loads(re.search(r'id="wb-doc">(.*?)</script>', page, re.DOTALL).group(1))
    assert [bool(view["maps"]) for view in doc["views"]] == [True, True, False]
    assert doc["title"] == doc["headline"] == "Two builds"
    assert doc["views"][0]["prompts"]["texts"] == doc["views"][1]["prompts"]["texts"]  # stored once
    assert page.count('<script type="module">') == 1
    alone = wb.report([[a, b]], out=tmp_path / "one.html", date=DATE, quiet=True)
    assert alone.read_bytes() == wb.report([a, b], out=tmp_path / "two.html", date=DATE, quiet=True).read_bytes()
    with pytest.raises(ViewError, match="list of its own"):
        wb.report(a, b, again, out=tmp_path / "no.html")
    with pytest.raises(ViewError, match="none"):
        wb.report([], out=tmp_path / "no.html")
    with pytest.raises(ViewError, match="color must be one of"):
        wb.report([a], [b], color="nothing", out=tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()


def test_the_command_sweeps_the_taps_and_reads_the_probes_on_the_other_run(runs, tmp_path, capsys):
    a, again, b = runs
    out = tmp_path / "r.html"
    words = ["report", str(a.path), str(b.path), "--probe", "height", "--all-taps", "--repeat", str(again.path)]
    assert main([*words, "--out", str(out)]) == 0
    doc, _ = unpack(out)
    assert [one["type"] for one in doc["sections"]] == ["probe", "result", "comparison", "provenance"]
    assert section(doc, "result")["verdict"]["measured"]
    assert main(["report", str(a.path), "--probe", f"{SECRET}sign", "--out", str(out)]) == 0
    titles = {one["title"] for one in section(unpack(out)[0], "probe")["extremes"]}
    assert titles >= {f"Surest {SECRET}{word}, as read at final_norm" for word in ("up", "down")}


def test_a_live_view_enters_a_report_with_its_selections(runs, tmp_path):
    view = wb.explore(runs[0], background=False)
    view.keep("mine", [3, 5])
    doc, _ = unpack(wb.report(view, out=tmp_path / "r.html", quiet=True))
    assert doc["selections"] == [{"name": "mine", "rows": [3, 5]}]
    both = wb.report(view, [runs[2]], out=tmp_path / "two.html", quiet=True)
    assert len(unpack(both)[0]["views"]) == 2


def test_redacted_pages_of_results_hold_no_text(runs, results, tmp_path):
    pages = [result.to_html(tmp_path / "r.html", redact="all", compress=False, quiet=True) for result in results[:1]]
    pages.append(wb.report(*[[result] for result in results], redact="all", compress=False, out=tmp_path / "all.html"))
    a, _, b = runs
    mine = [result for result in results if set(result.provenance.runs) <= {run.manifest.run_id for run in (a, b)}]
    pages.append(wb.report(a, b, *mine, redact="all", compress=False, out=tmp_path / "runs.html", quiet=True))
    for page in pages:
        doc, blocks = unpack(page)
        assert SECRET not in json.dumps(doc)
        assert SECRET not in json.dumps([block for block in blocks if not isinstance(block, np.ndarray)])


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_results_draw_and_can_be_read(runs, results, tmp_path, scheme):
    a, _, b = runs
    with_runs = [result for result in results if result.kind not in ("churn", "error split", "projection")]
    parts = [[a, b, *with_runs], *[[result] for result in results]]
    path = wb.report(*parts, out=tmp_path / "r.html", quiet=True, max_bytes=None)
    with chromium() as browser, opened(browser, path, scheme=scheme) as found:
        page = found.page
        assert page.locator(".wb-view").count() == len(parts)
        for canvas in page.locator(".wb-points").all():
            assert canvas.evaluate(COLOURED) > 200
        assert page.locator(".wb-chart svg polyline").count() > 12
        assert page.evaluate(BROKEN) == []
        assert page.evaluate(CONTRAST) == []
        page.locator(".wb-contents button").nth(3).click()
        assert page.evaluate("document.activeElement.classList.contains('wb-view-head')")
        page.locator(".wb-c-tap[role=button]").first.press("Enter")
        flips = page.locator(".wb-view").first.get_by_role("button", name="show", exact=True).first
        flips.click()
        assert page.locator(".wb-count").first.inner_text().startswith("1 selected")
        found.check()


@browser_test
def test_print_is_light_has_no_controls_and_fits_the_paper(runs, results, tmp_path):
    a, _, b = runs
    parts = [result for result in results if result.kind in ("sweep", "transfer", "comparison")]
    path = wb.report([a, b, *parts], [results[2]], out=tmp_path / "r.html", quiet=True)
    with chromium() as browser, opened(browser, path, scheme="dark", width=718) as found:
        page = found.page
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.emulate_media(media="print")
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        for hidden in (".wb-bar", ".wb-under", ".wb-exchange", ".wb-go", ".wb-theme", "details"):
            assert page.locator(hidden).count() > 0
            assert not any(node.is_visible() for node in page.locator(hidden).all()), hidden
        for shown in ("h1", ".wb-points", ".wb-grid", ".wb-chart svg", ".wb-provenance .wb-card", ".wb-view-head"):
            assert page.locator(shown).first.is_visible(), shown
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(CONTRAST) == []
        assert page.pdf(format="A4").count(b"/Type /Page\n") > 4
        found.check()


@browser_test
def test_hostile_texts_stay_text_on_pages_of_results(tmp_path):
    n = 150
    rng = np.random.default_rng(0)
    texts = [HOSTILE[i % len(HOSTILE)][:3000] + f" {i}" for i in range(n)]
    columns = {"height": rng.normal(size=n).tolist(), HOSTILE[5]: [HOSTILE[i % 2] for i in range(n)]}
    runs = three(tmp_path, texts, columns)
    results = results_of(runs, HOSTILE[5])
    own = [result for result in results if result.kind in ("probe", "transfer", "neighbours", "clusters")]
    path = wb.report([runs[0], runs[2], *own], *[[one] for one in results], out=tmp_path / "r.html", max_bytes=None)
    with chromium() as browser, opened(browser, path) as found:
        assert found.page.locator(".wb-view").count() == len(results) + 1
        assert found.page.locator("img, iframe, script[src], style + style").count() == 0
        found.check()
