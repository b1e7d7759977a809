"""Maps, clusters and the worker: planted structure, honest badges, nothing left behind by a cancel."""

import json
import threading
import time

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import cluster, project
from workbench.analysis import align, load_clusters, load_projection, start_project
from workbench.analysis.aligning import procrustes
from workbench.analysis.churning import adjusted_rand, churn
from workbench.analysis.clustering import by_size
from workbench.analysis.topics import name_clusters
from workbench.analysis.trust import map_trust
from workbench.analysis.worker import Cancelled, Worker
from workbench.errors import AnalysisError

QUIET = {"progress": False}


def blobs(n=200, width=20, k=4, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, size=n)
    return (rng.standard_normal((k, width))[truth] * 8 + rng.standard_normal((n, width))).astype(np.float32), truth


def test_a_pca_map_of_a_plane_is_the_plane(tmp_path):
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((80, 2)) * [5, 2]
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0][:2]
    made = project(make_run(tmp_path / "run", plane @ turn + 3), "final_norm", **QUIET)
    _, scale, _ = procrustes(made.coordinates, plane)
    assert scale == pytest.approx(1, abs=1e-4)
    assert made.trust.trustworthiness == pytest.approx(1)
    assert made.explained[:2].sum() == pytest.approx(1)
    assert made.badge == "single"
    assert made.coordinates.dtype == np.float32
    assert "trustworthiness" in str(made)


def test_a_map_says_where_it_comes_from_and_survives_the_disk(tmp_path):
    states, _ = blobs()
    made = project(make_run(tmp_path / "run", states), "final_norm", seed=3, **QUIET)
    back = load_projection(made.save(tmp_path / "maps" / "first"))
    np.testing.assert_array_equal(back.coordinates, made.coordinates)
    assert back.provenance == made.provenance
    assert back.trust == made.trust
    assert (made.provenance.seed, made.provenance.n_rows, made.provenance.engines) == (3, 200, ("a" * 64,))
    assert str(tmp_path) not in made.to_json()
    assert json.loads(made.to_json())["method"] == "pca"
    target = tmp_path / "maps" / "first.safetensors"
    target.write_bytes(target.read_bytes()[:-1] + b"x")
    with pytest.raises(AnalysisError, match="belong together"):
        load_projection(tmp_path / "maps" / "first")
    with pytest.raises(AnalysisError, match="kind"):
        load_clusters(tmp_path / "maps" / "first")


def test_badges_say_what_may_be_compared(tmp_path):
    states, _ = blobs()
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", states + 0.01, letter="b")
    for together in ("joint", "transformed"):
        made = project([a, b], "final_norm", together=together, **QUIET)
        assert made.badge == together
        assert made.displacement().shape == (200,)
        assert made.displacement().max() < 0.01
        assert list(np.bincount(made.run_of_row)) == [200, 200]
    apart = project([a, b], "final_norm", together="independent", **QUIET)
    with pytest.raises(AnalysisError, match="independent"):
        apart.displacement()


def test_a_shift_shows_in_a_joint_map(tmp_path):
    states, _ = blobs()
    moved = states.copy()
    moved[:20] += 10
    runs = [make_run(tmp_path / name, rows) for name, rows in (("a", states), ("b", moved))]
    shift = project(runs, "final_norm", **QUIET).displacement()
    assert shift[:20].min() > 10 * shift[20:].max()


def test_rows_with_inf_are_left_out_and_counted(tmp_path):
    states, _ = blobs()
    states[5, 0] = np.inf
    made = project(make_run(tmp_path / "run", states), "final_norm", **QUIET)
    assert made.left_out == 1
    assert 5 not in made.rows
    assert "left out" in str(made)


def test_unknown_methods_parameters_and_tiny_runs_are_refused(tmp_path):
    run = make_run(tmp_path / "run", blobs()[0])
    for options, match in [
        ({"method": "isomap"}, "pca, umap, tsne"), ({"n_neighbors": 5}, "no further parameters"),
        ({"rows": [0, 1]}, "five rows"), ({"together": "aligned"}, "joint"),
        ({"method": "tsne", "together": "transformed"}, "t-SNE"),
    ]:  # fmt: skip
        with pytest.raises(AnalysisError, match=match):
            project(run, "final_norm", **QUIET, **options)


def test_procrustes_finds_a_known_turn():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 2))
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    rotation, scale, shift = procrustes(points, 2 * points @ turn + [5, -1])
    np.testing.assert_allclose(rotation, turn, atol=1e-12)
    np.testing.assert_allclose([scale, *shift], [2, 5, -1])


def test_only_pca_maps_are_aligned(tmp_path):
    import dataclasses

    states, _ = blobs()
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((20, 20)))[0]
    maps = [
        project(make_run(tmp_path / n, rows), "final_norm", **QUIET)
        for n, rows in (("a", states), ("b", states @ turn))
    ]
    near = align(maps[1], maps[0])
    np.testing.assert_allclose(near.coordinates, maps[0].coordinates, atol=1e-2)
    assert near.badge == "aligned"
    with pytest.raises(AnalysisError, match="only PCA"):
        align(dataclasses.replace(maps[0], method="umap"), maps[1])


def test_trust_equals_scikit_learn_and_falls_for_a_random_map():
    from sklearn.manifold import trustworthiness

    states, _ = blobs(120)
    rng = np.random.default_rng(0)
    for coordinates in (states[:, :2], rng.standard_normal((120, 2)).astype(np.float32)):
        found = map_trust(states, coordinates, k=7)
        assert found.trustworthiness == pytest.approx(trustworthiness(states, coordinates, n_neighbors=7), abs=1e-6)
        assert found.continuity == pytest.approx(trustworthiness(coordinates, states, n_neighbors=7), abs=1e-6)
    assert found.trustworthiness < 0.65


def test_planted_clusters_are_found_and_named_by_their_prompts(tmp_path):
    states, truth = blobs()
    words = ["river", "engine", "piano", "lemon"]
    texts = [f"the {words[t]} number {i}" for i, t in enumerate(truth)]
    run = make_run(tmp_path / "run", states, texts=texts)
    made = cluster(run, "final_norm", k=4, **QUIET)
    assert churn(made, truth).adjusted_rand == 1
    for code, name in enumerate(made.names):
        assert name == words[truth[made.labels == code][0]]
    assert list(made.sizes) == sorted(made.sizes, reverse=True)
    assert made.quality.silhouette > 0.5
    assert made.quality.stability_seeds == pytest.approx(1)
    assert made.labels.dtype == np.int32
    back = load_clusters(made.save(tmp_path / "clusters"))
    np.testing.assert_array_equal(back.labels, made.labels)
    assert back.names == made.names


def test_quality_of_unrelated_rows_is_low(tmp_path):
    states = np.random.default_rng(0).standard_normal((200, 20)).astype(np.float32)
    made = cluster(make_run(tmp_path / "run", states), "final_norm", k=4, **QUIET)
    assert made.quality.silhouette < 0.15
    assert made.quality.stability_halves < 0.8


def test_density_clusters_leave_noise_alone_in_the_worker(tmp_path):
    states, truth = blobs(k=3)
    rng = np.random.default_rng(1)
    states = np.concatenate([states, rng.uniform(-60, 60, size=(10, 20)).astype(np.float32)])
    made = cluster(make_run(tmp_path / "run", states), "final_norm", method="hdbscan", min_cluster_size=15, **QUIET)
    assert made.k == 3
    assert (made.labels[200:] == -1).mean() > 0.8
    assert churn(made.labels[:200], truth).adjusted_rand > 0.9


def test_bad_cluster_questions_are_refused(tmp_path):
    run = make_run(tmp_path / "run", blobs()[0])
    for options, match in [({"k": 1}, "k from 2"), ({"method": "dbscan"}, "kmeans, hdbscan"), ({"k": 500}, "k=500")]:
        with pytest.raises(AnalysisError, match=match):
            cluster(run, "final_norm", **QUIET, **options)


def test_churn_matches_labels_whatever_their_numbers():
    a, b = np.array([0, 0, 1, 1, 2, 2, -1]), np.array([2, 2, 0, 0, 1, 0, -1])
    found = churn(a, b)
    assert dict(found.matched) == {0: 2, 1: 0, 2: 1}
    assert list(found.changed) == [5]
    assert found.stayed == pytest.approx(6 / 7)
    with pytest.raises(AnalysisError, match="same rows"):
        churn(a, b[:3])


def test_adjusted_rand_equals_scikit_learn():
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
        table = np.zeros((4, 3))
        np.add.at(table, (a, b), 1)
        assert adjusted_rand(table) == pytest.approx(adjusted_rand_score(a, b))


def test_clusters_are_numbered_by_size():
    assert list(by_size([5, 5, -1, 2, 2, 2])) == [1, 1, -1, 0, 0, 0]


def test_words_that_all_clusters_share_name_none():
    names = name_clusters([0, 0, 1, 1, -1], ["same", "same words", "same words", "same", None])
    assert names == {-1: "noise", 0: "cluster 0", 1: "cluster 1"}


@pytest.fixture(scope="module")
def worker():
    made = Worker()
    yield made
    made.stop()


def test_a_cancelled_fit_ends_at_once_and_the_next_one_works(worker):
    rows = np.random.default_rng(0).standard_normal((4000, 50)).astype(np.float32)
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(Cancelled):
        worker.run("tsne", {"fit": rows}, {"perplexity": 30, "seed": 0}, cancel=cancel)
    made = worker.run("hdbscan", {"fit": blobs()[0]}, {"min_cluster_size": 10})
    assert made["labels"].shape == (200,)


def test_an_error_of_a_job_reaches_the_caller_and_the_worker_lives(worker):
    with pytest.raises(AnalysisError, match="must succeed"):
        worker.run("hdbscan", {"fit": np.full((9, 2), np.nan, np.float32)}, {"min_cluster_size": 3})
    process = worker._process
    worker.run("hdbscan", {"fit": blobs()[0]}, {"min_cluster_size": 10})
    assert worker._process is process


def test_umap_keeps_planted_clusters_apart_and_reports_progress(tmp_path):
    states, truth = blobs(120, k=3)
    a, b = make_run(tmp_path / "a", states), make_run(tmp_path / "b", states + 0.01)
    fit = start_project([a, b], "final_norm", together="transformed", n_neighbors=10)
    seen = set()
    while not fit.done():
        seen.add(fit.progress)
        time.sleep(0.02)
    made = fit.result()
    assert len(seen) > 2
    assert made.fitted_rows == 120
    assert made.trust.trustworthiness > 0.8
    home = made.of_run(0)
    centres = np.stack([home[truth == t].mean(axis=0) for t in range(3)])
    nearest = np.linalg.norm(home[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == truth).mean() > 0.95
    assert np.median(made.displacement()) < 0.2


def test_clusters_that_come_late_in_a_large_run_are_named_too(tmp_path, monkeypatch):
    from workbench.analysis import clustering

    monkeypatch.setattr(clustering, "NAMED_ROWS", 40)
    states, truth = blobs()
    order = np.argsort(truth, kind="stable")
    words = np.array(["lemon", "river", "stone", "cloud", "metal"])[truth % 5]
    texts = [f"{words[at]} number {at}" for at in order]
    found = cluster(make_run(tmp_path / "run", states[order], texts=texts), "final_norm", k=len(set(truth)), **QUIET)
    assert not [name for name in found.names if name.startswith("cluster ")]
