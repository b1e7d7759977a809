"""First tokens, whose states are a hundred times as long as any other, are left out or counted, and it is said."""

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import cluster, compare, fit_probe, project
from workbench.analysis import load_clusters, load_projection, sweep_probe
from workbench.analysis.sampling import asked_rows, first_token_rows
from workbench.errors import AnalysisError
from workbench.store import open_run

QUIET = {"progress": False}
LENGTHS = np.array([3, 1] + [5] * 30)


def sink_states(seed=0, width=12):
    """Two groups of rows, and one giant direction at every first token."""
    rng = np.random.default_rng(seed)
    places = np.concatenate([np.arange(n) for n in LENGTHS])
    states = rng.standard_normal((len(places), width)).astype(np.float32)
    states[:, 1] += 6 * (np.arange(len(places)) % 2)
    states[places == 0] = 300 * np.eye(width, dtype=np.float32)[0] + 0.01 * states[places == 0]
    return states, places


def sink_run(path, states, **more):
    return make_run(path, states, lengths=LENGTHS, positions="all", **more)


def test_first_tokens_are_marked_by_their_place(tmp_path):
    states, places = sink_states()
    run = sink_run(tmp_path / "run", states)
    marked = first_token_rows(run)
    assert marked[:5].tolist() == [True, False, False, True, True]
    assert marked.sum() == 32
    kept, dropped = asked_rows(run, None, "drop")
    assert (len(kept), dropped) == (len(places) - 32, 32)
    assert asked_rows(run, [0, 1, 3], "drop")[0].tolist() == [1]
    assert asked_rows(run, [0, 1], "keep")[1] == 0
    last = make_run(tmp_path / "last", states[:4], lengths=np.array([1, 1, 2, 1]))
    first = make_run(tmp_path / "first", states[:4], lengths=np.full(4, 2), positions=(0,))
    assert asked_rows(last, None, "drop")[1] == asked_rows(first, None, "drop")[1] == 0
    with pytest.raises(AnalysisError, match="'drop' or 'keep'"):
        project(run, "final_norm", first_tokens="mask", **QUIET)


def test_a_map_is_not_ruled_by_first_tokens(tmp_path):
    states, places = sink_states()
    run = sink_run(tmp_path / "run", states)
    made, whole = (project(run, "final_norm", first_tokens=how, **QUIET) for how in ("drop", "keep"))
    assert project(run, "final_norm", **QUIET).rows.tolist() == made.rows.tolist()
    assert made.rows.tolist() == asked_rows(run, None, "drop")[0].tolist()
    assert (made.dropped_first, made.left_out, whole.dropped_first) == (32, 0, 0)
    assert "32 first tokens left out" in str(made)
    assert "32 first tokens left out" in made.provenance.sampling
    assert "first tokens" not in str(whole)
    group = np.arange(len(places)) % 2
    assert np.abs(np.corrcoef(made.coordinates[:, 0], group[made.rows])[0, 1]) > 0.9
    assert np.abs(np.corrcoef(whole.coordinates[:, 0], group)[0, 1]) < 0.2
    assert load_projection(made.save(tmp_path / "map")).dropped_first == 32


def test_clusters_are_not_ruled_by_first_tokens(tmp_path):
    states, _ = sink_states()
    run = sink_run(tmp_path / "run", states)
    made = cluster(run, "final_norm", k=2, **QUIET)
    group = (made.rows % 2).astype(bool)
    share = np.mean(made.labels[group])
    assert abs(share - np.mean(made.labels[~group])) > 0.9
    assert "32 first tokens left out" in str(made)
    assert load_clusters(made.save(tmp_path / "clusters")).dropped_first == 32
    whole = cluster(run, "final_norm", k=2, first_tokens="keep", **QUIET)
    assert whole.sizes == (len(states) - 32, 32)


def test_a_comparison_counts_them_and_can_leave_them_out(tmp_path):
    states, places = sink_states()
    other = states.copy()
    later = places > 0
    other[later] = np.random.default_rng(9).standard_normal((later.sum(), 12)).astype(np.float32)
    a, b = sink_run(tmp_path / "a", states), sink_run(tmp_path / "b", other, letter="b")
    kept, dropped = (compare(a, b, first_tokens=how, **QUIET) for how in ("keep", "drop"))
    assert "32 of the rows are first tokens" in " ".join(kept.notes)
    assert "32 rows of first tokens were left out" in str(dropped)
    assert dropped.n_rows == kept.n_rows - 32
    assert kept.taps[0].cka > 0.99  # their one direction hides that nothing else agrees
    assert abs(dropped.taps[0].cka) < 0.2


def test_probes_and_sweeps_can_leave_them_out(tmp_path):
    states, places = sink_states()
    labels = np.where(np.arange(len(places)) % 2, "odd", "even")
    run = sink_run(tmp_path / "run", states)
    whole = fit_probe(run, "final_norm", labels, shuffles=2, **QUIET)
    made = fit_probe(run, "final_norm", labels, shuffles=2, first_tokens="drop", **QUIET)
    assert made.n_rows == whole.n_rows - 32
    assert made.score > whole.score
    assert "32 first tokens left out" in made.provenance.sampling
    few = fit_probe(run, "final_norm", labels, shuffles=2, first_tokens="drop", fit_rows=50, **QUIET)
    assert few.provenance.sampling.endswith("spread over prompts; 32 first tokens left out")
    swept = sweep_probe(run, labels, shuffles=2, first_tokens="drop", **QUIET)
    assert swept.probes[0].n_rows == made.n_rows


def test_the_first_token_of_an_offset_run_counts_too(tmp_path):
    states = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    run = make_run(tmp_path / "run", states, lengths=np.full(4, 3), positions=(0, -1))
    assert first_token_rows(open_run(run.path)).tolist() == [True, False] * 4
