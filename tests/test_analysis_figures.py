"""Figures, tables and markup of every kind of result; hostile text in all of them."""

import html
import re

import numpy as np
import pytest
from analysis_runs import make_run
from hostile_strings import HOSTILE

from workbench import cluster, compare, fit_probe, project
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
from workbench.errors import AnalysisError

QUIET = {"progress": False}
ASIDE = "<img src=x onerror=alert(1)> $x$ <b>"


def hostile_run(path, *, letter="a", shift=0.0):
    """Two taps of 240 rows; texts, ids, a class and a column name are hostile."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((240, 12))
    value = states[:, 1] - states[:, 2] + 0.3 * rng.standard_normal(240)
    moved = states + shift * np.random.default_rng(9).standard_normal(states.shape)
    texts = [f"{HOSTILE[i % len(HOSTILE)]} {i}"[:2000] for i in range(240)]
    columns = {ASIDE: value.tolist(), "kind": np.where(value > 0, ASIDE, "plain").tolist()}
    taps = {"blocks.0.resid_post": moved * 0.5, "final_norm": moved}
    ids = [f"{ASIDE}{i}" for i in range(240)]
    return make_run(path, taps, texts=texts, columns=columns, letter=letter, ids=ids)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return (
        hostile_run(folder / "a"),
        hostile_run(folder / "b", letter="b", shift=0.3),
        hostile_run(folder / "c", shift=1e-3),
    )


@pytest.fixture(scope="module")
def results(runs):
    a, b, again = runs
    number, kind = (fit_probe(a, "final_norm", name, shuffles=2, **QUIET) for name in (ASIDE, "kind"))
    sweep = sweep_probe(a, ASIDE, shuffles=2, **QUIET)
    groups = cluster(a, "final_norm", k=3, **QUIET)
    return [
        project([a, b], "final_norm", **QUIET), groups, compare(a, b, **QUIET), number, kind, sweep,
        transfer(number, a, b, other_engine=True, repeat=again), transfer(kind, a, b, other_engine=True),
        find_neighbours(a, "final_norm", row=0), pair_prompts(a, 0, 1), churn(groups, groups),
        logit_lens(a, head=Head(unembed=np.eye(12, dtype=np.float32)), **QUIET),
        split_error(a, again, b, **QUIET), learning_curve(number, a),
    ]  # fmt: skip


def strings_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        yield from strings_of(value.tolist())


def arrays_of(trace):
    for name in ("x", "y", "z"):
        values = trace[name] if name in trace else None  # noqa: SIM401 - a plotly trace has no get
        if values is not None and np.asarray(values).dtype.kind == "f":
            yield np.asarray(values)


def test_every_figure_is_a_widget_of_float32_with_escaped_text(results):
    import plotly.graph_objects as go

    seen = 0
    for result in results:
        for name in result.figures():
            figure = result.plot(name)
            assert isinstance(figure, go.FigureWidget), (result.kind, name)
            assert figure.data, (result.kind, name)
            assert all(values.dtype == np.float32 for trace in figure.data for values in arrays_of(trace)), name
            for text in strings_of(figure.to_dict()):
                assert "<" not in re.sub(r"<br>|<extra></extra>", "", text), (result.kind, name, text[:80])
                assert "$" not in text
                seen += "&lt;img" in text
    assert seen > 8  # hostile labels did reach the figures, escaped
    with pytest.raises(AnalysisError, match="a figure is one of"):
        results[0].plot("none")


def test_controls_show_one_figure_after_the_other(results):
    import plotly.graph_objects as go

    comparison = next(result for result in results if result.kind == "comparison")
    menu, shown = comparison.controls().children
    assert menu.options == tuple(comparison.figures())
    menu.value = "CKA"
    (figure,) = shown.children
    assert isinstance(figure, go.FigureWidget)
    assert "CKA by tap" in figure.layout.title.text


def test_markup_of_every_result_holds_no_tag_of_the_data(results):
    allowed = r"</?(?:div|p|br|table|thead|tbody|tr|th|td)>"
    for result in results:
        markup = result._repr_html_()
        assert "<" not in re.sub(allowed, "", markup), result.kind
        assert str(result)[:24] in html.unescape(markup)


def test_a_transfer_tells_each_flip_and_stands_against_its_repeat(runs, results):
    a, b, _ = runs
    number, kind = (result for result in results if result.kind == "transfer")
    np.testing.assert_array_equal(number.rows[number.moved > 0.1], np.sort(number.flips))
    table = number.columns()
    assert (np.diff(table["moved"]) <= 0).all()
    np.testing.assert_array_equal(table[ASIDE], np.array(a.prompts.column(ASIDE))[table["row"]])
    assert number.floor_moved.max() < number.moved.max()
    assert number.agreement < number.floor_agreement <= 1
    flips = kind.columns()
    assert len(flips["row"]) > 0
    assert (flips["home"] != flips["away"]).all()
    assert kind.floor_agreement is None
    each = transfer_sweep(sweep_probe(a, ASIDE, shuffles=2, **QUIET), a, b, other_engine=True)
    assert [one.tap for one in each] == ["blocks.0.resid_post", "final_norm"]
    assert each[1].score_away == number.score_away


def test_churn_names_its_clusters_and_where_they_come_from(runs, results):
    groups, found = (next(r for r in results if r.kind == kind) for kind in ("clusters", "churn"))
    assert found.provenance.runs == groups.provenance.runs
    assert found.columns()["stayed"].sum() == len(groups.labels)
    assert found.columns()["cluster_a"].tolist() == list(groups.names)
    plain = churn([0, 0, 1], [1, 1, 0])
    assert plain.provenance.runs == ()
    assert plain.columns()["cluster_b"].tolist() == ["cluster 1", "cluster 0"]


def test_an_exact_zero_is_marked_at_the_foot_of_a_logarithmic_axis():
    from workbench.analysis.charts import lines

    series = {"mean": [0.0, 1e-3, 2e-3], "worst": [0.0, 1e-2, np.nan]}
    made = lines(["a", "b", "c"], series, "t", "tap", "error", log=True)
    assert made.layout.yaxis.type == "log"
    marks = [trace for trace in made.data if trace.name.endswith("exactly 0")]
    assert [list(mark.x) for mark in marks] == [["a"], ["a"]]
    assert all(0 < mark.y[0] < 1e-3 for mark in marks)
    assert all(not np.any(np.asarray(trace.y) == 0) for trace in made.data)
    plain = lines(["a", "b"], {"mean": [0.0, 0.0]}, "t", "tap", "error", log=True)
    assert plain.layout.yaxis.type != "log"
    assert list(plain.data[0].y) == [0, 0]
