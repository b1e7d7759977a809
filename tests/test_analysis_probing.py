"""Probes: scikit-learn as the twin, planted directions, and every way in which a probe could cheat."""

import json

import numpy as np
import pytest
from analysis_runs import make_run

from workbench import fit_probe
from workbench.analysis import crossval
from workbench.analysis.crossval import held_out
from workbench.analysis.folds import grouped_folds
from workbench.analysis.logistic import balanced_weights, logistic_path, row_axes
from workbench.analysis.ridge import FoldSums, fit_standard, ridge_path, solve_ridge
from workbench.errors import AnalysisError, PromptError


def planted(n=240, width=24, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    states = (rng.standard_normal((n, width)) * np.r_[50, np.ones(width - 1)] + 3).astype(np.float32)
    value = states[:, 1] - 2 * states[:, 2] + noise * rng.standard_normal(n)
    return states, value


@pytest.mark.parametrize(("n", "width"), [(60, 8), (20, 50)])
def test_ridge_equals_scikit_learn(n, width):
    from sklearn.linear_model import Ridge

    states, _ = planted(n, width)
    rows = fit_standard(states).apply(states)
    targets = np.random.default_rng(1).standard_normal((n, 3))
    for alpha, weights in zip((0.1, 30.0), ridge_path(rows, targets, (0.1, 30.0)), strict=True):
        twin = Ridge(alpha=alpha).fit(rows, targets)
        np.testing.assert_allclose(weights.T, twin.coef_, rtol=1e-6, atol=1e-8)


def test_ridge_from_sums_of_folds_equals_ridge_on_the_rows():
    states, value = planted()
    folds = grouped_folds(np.arange(len(states)), 4)
    targets = np.stack([value, value**2], axis=1)
    standard, weights, bias = FoldSums(states, targets, folds).solve([0, 2, 3], [10.0])
    train = folds != 1
    plain = fit_standard(states[train])
    np.testing.assert_allclose(standard.mean, plain.mean, rtol=1e-9)
    np.testing.assert_allclose(standard.scale, plain.scale, rtol=1e-9)
    np.testing.assert_allclose(weights[0], ridge_path(plain.apply(states[train]), targets[train], [10.0])[0], rtol=1e-7)
    np.testing.assert_allclose(bias, targets[train].mean(axis=0))


def test_held_out_ridge_equals_scikit_learns_grouped_cross_validation():
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    states, value = planted()
    folds = grouped_folds(np.arange(len(states)) // 3, 5)
    found = held_out(states, value[None, :, None], folds, "ridge", [100.0])
    twin = cross_val_predict(
        make_pipeline(StandardScaler(), Ridge(alpha=100.0)), states.astype(np.float64), value, cv=PredefinedSplit(folds)
    )
    np.testing.assert_allclose(found.outputs[0, :, 0], twin, rtol=1e-6)


def test_the_penalty_is_chosen_without_the_outer_fold():
    states, value = planted(noise=8)
    folds = grouped_folds(np.arange(len(states)), 5)
    sets = value[None, :, None]
    grid = [1.0, 100.0, 10_000.0]
    before = held_out(states, sets, folds, "ridge", grid).alphas
    changed = sets.copy()
    changed[:, folds == 2] *= -1000  # what lies in fold 2 must not reach the choice made for fold 2
    assert held_out(states, changed, folds, "ridge", grid).alphas[2] == before[2]


def test_a_held_out_prediction_never_sees_its_own_fold():
    states, value = planted()
    folds = grouped_folds(np.arange(len(states)), 5)
    for method, labels in (
        ("ridge", value),
        ("logistic", (value > 0).astype(float)),
        ("mean_difference", (value > 0) * 1.0),
    ):
        one = held_out(states, labels[None, :, None], folds, method, [10.0, 100.0, 1000.0], n_classes=2)
        changed = labels.copy()
        changed[folds == 3] = 1 - changed[folds == 3]
        two = held_out(states, changed[None, :, None], folds, method, [10.0, 100.0, 1000.0], n_classes=2)
        np.testing.assert_allclose(one.outputs[0][folds == 3], two.outputs[0][folds == 3])
        assert not np.allclose(one.outputs[0][folds == 1], two.outputs[0][folds == 1])


@pytest.mark.parametrize(("n", "width", "balanced"), [(150, 6, False), (150, 6, True), (40, 70, False)])
def test_logistic_equals_scikit_learn(n, width, balanced):
    from sklearn.linear_model import LogisticRegression

    states, value = planted(n, width)
    codes = np.digitize(value, np.quantile(value, [0.5, 0.8]))
    rows = fit_standard(states).apply(states)
    weights = balanced_weights(codes, 3) if balanced else None
    found, bias = logistic_path(row_axes(rows), codes, 3, [30.0, 1.0], row_weights=weights)
    for i, alpha in enumerate((30.0, 1.0)):
        twin = LogisticRegression(C=1 / alpha, tol=1e-8, max_iter=5000, class_weight="balanced" if balanced else None)
        twin.fit(rows, codes)
        ours, theirs = rows @ found[i] + bias[i], rows @ twin.coef_.T + twin.intercept_
        ours, theirs = (side - side.mean(axis=1, keepdims=True) for side in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=0.05 * np.abs(theirs).max())
        assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.98


def test_solve_ridge_solves():
    gram = np.diag([1.0, 3.0])
    np.testing.assert_allclose(solve_ridge(gram, np.array([[2.0], [8.0]]), [1.0])[0], [[1.0], [2.0]])


def test_a_planted_direction_is_found_and_shuffled_labels_are_not(tmp_path):
    states, value = planted(400)
    run = make_run(
        tmp_path / "run",
        states,
        columns={"value": value.tolist(), "noise": np.random.default_rng(9).standard_normal(400).tolist()},
    )
    probe = fit_probe(run, "final_norm", "value", progress=False)
    assert probe.score > 0.9
    assert abs(probe.control) < 0.05
    assert probe.interval[0] < probe.score < probe.interval[1]
    direction = probe.matrix[0][:, 0]
    assert direction[1] == pytest.approx(1, abs=0.1)
    assert direction[2] == pytest.approx(-2, abs=0.1)
    np.testing.assert_allclose(probe.predict(states), states @ probe.matrix[0] + probe.matrix[1], rtol=1e-4, atol=1e-3)
    assert abs(fit_probe(run, "final_norm", "noise", progress=False).score) < 0.1
    assert probe.calibration.slope == pytest.approx(1, abs=0.1)
    text = str(probe)
    assert "R2" in text
    assert "shuffled labels" in text
    body = json.loads(probe.to_json())
    assert body["provenance"]["engines"] == ["a" * 64]
    assert body["score"] == probe.score
    assert len(probe.to_frame()) == 400


def test_repeated_prompts_never_stand_on_both_sides(tmp_path):
    """States that name the prompt and labels drawn per prompt: leakage would give a perfect score."""
    rng = np.random.default_rng(0)
    names = rng.integers(0, 40, size=400)
    states = (rng.standard_normal((40, 64))[names] + 0.01 * rng.standard_normal((400, 64))).astype(np.float32)
    label = rng.standard_normal(40)[names]
    texts = [f"name {name}" for name in names]
    run = make_run(tmp_path / "run", states, texts=texts, columns={"label": label.tolist(), "row": list(range(400))})
    grouped = fit_probe(run, "final_norm", "label", progress=False)
    for text in set(texts):
        assert len({fold for fold, other in zip(grouped.fold_of_row, texts, strict=True) if other == text}) == 1
    assert grouped.score < 0.2
    assert grouped.n_groups == 40
    leaking = fit_probe(run, "final_norm", "label", groups="row", progress=False)
    assert leaking.score > 0.9  # the same data without groups: the test can fail


def test_tokens_of_one_prompt_stay_together_and_a_column_can_group(tmp_path):
    states, _ = planted(120)
    columns = {"label": ["x", "y"] * 20, "country": [f"c{i // 4}" for i in range(40)]}
    run = make_run(tmp_path / "run", states, lengths=np.full(40, 3), positions="all", columns=columns)
    probe = fit_probe(run, "final_norm", "label", groups="country", folds=3, progress=False)
    prompts = run.prompt_of_rows()
    for country in range(10):
        assert len(set(probe.fold_of_row[prompts // 4 == country])) == 1
    assert probe.group_by == "column country"


def test_a_classification_says_majority_classes_and_recall(tmp_path):
    states, value = planted(300)
    names = np.where(value > np.quantile(value, 0.8), "NA", "EU").tolist()  # "NA" is a name and not missing
    names[7] = None
    run = make_run(tmp_path / "run", states, columns={"continent": names})
    probe = fit_probe(run, "final_norm", "continent", shuffles=3, progress=False)
    assert probe.classes == ("EU", "NA")
    assert probe.dropped == 1
    assert probe.n_rows == 299
    assert probe.baseline == pytest.approx(0.8, abs=0.02)
    assert probe.score > 0.9
    assert probe.control == pytest.approx(0.8, abs=0.1)
    assert probe.balanced > 0.8
    assert set(probe.classify(states[:20])) <= {"EU", "NA"}
    direction = fit_probe(run, "final_norm", "continent", method="mean_difference", shuffles=2, progress=False)
    assert direction.score > 0.8


def test_token_ids_alone_and_selectivity(tmp_path):
    """A label that is a function of the token: the token baseline tells it, and selectivity is low."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 30, size=600)
    states = (rng.standard_normal((30, 40))[tokens] + 0.1 * rng.standard_normal((600, 40))).astype(np.float32)
    run = make_run(tmp_path / "run", states, lengths=np.full(200, 3), positions="all", tokens=tokens)
    probe = fit_probe(run, "final_norm", rng.standard_normal(30)[tokens], progress=False)
    assert probe.score > 0.9
    assert probe.token_baseline > 0.95
    assert probe.selectivity < 0.15


def test_wrong_questions_are_refused(tmp_path):
    states, value = planted(60)
    run = make_run(tmp_path / "run", states, columns={"v": value.tolist(), "c": ["one"] * 60, "none": [None] * 60})
    cases = [
        ({"labels": "v", "method": "logistic"}, "fitted by ridge"), ({"labels": "c"}, "two classes"),
        ({"labels": "none"}, "labelled rows"), ({"labels": [1.0, 2.0]}, "one a prompt"),
        ({"labels": "v", "groups": "c"}, "group for each"), ({"labels": "v", "folds": 2}, "three folds"),
    ]  # fmt: skip
    for options, match in cases:
        with pytest.raises(AnalysisError, match=match):
            fit_probe(run, "final_norm", progress=False, **options)
    with pytest.raises(PromptError, match="'v'"):
        fit_probe(run, "final_norm", "latitude", progress=False)


def test_many_rows_are_sampled_over_prompts_and_the_result_says_so(tmp_path):
    states, value = planted(200)
    run = make_run(tmp_path / "run", states, columns={"v": value.tolist()})
    probe = fit_probe(run, "final_norm", "v", fit_rows=80, shuffles=2, progress=False)
    assert probe.n_rows == 80
    assert probe.provenance.sampling.startswith("80 of 200 labelled rows, seed 0")


def test_wide_states_take_the_other_product(tmp_path, monkeypatch):
    states, value = planted(90, 60)
    sets, folds = value[None, :, None], grouped_folds(np.arange(90), 3)
    direct = held_out(states, sets, folds, "ridge", [1.0, 100.0])
    monkeypatch.setattr(crossval, "SUMS_WIDTH", 4)
    np.testing.assert_allclose(held_out(states, sets, folds, "ridge", [1.0, 100.0]).outputs, direct.outputs, rtol=1e-6)
