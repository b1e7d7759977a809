"""The main job on real input gives the values that are known from elsewhere."""

import re

import numpy as np
import pytest
from conftest import needs_smollm2

import workbench as wb
from workbench.demo import MAIN, TAPS, city_prompts, run_demo

# 5 folds, equal names in one fold, standardised states, penalty from an inner fold: computed apart from this project
KNOWN = {MAIN: (0.44, 0.34, 0.54), "blocks.5.resid_post": (0.31, 0.21, 0.40)}


def test_the_cities_keep_their_columns():
    prompts = city_prompts(4000)
    assert len(prompts) == 4000
    assert prompts.texts[0] == f"{prompts.column('city')[0]} is a city located in"
    assert {"NA", "AS", "EU"} <= set(prompts.column("continent"))
    windhoek = prompts.column("city").index("Windhoek")
    assert prompts.column("country")[windhoek] == "Namibia"
    population = np.array(prompts.column("population"))
    assert (np.diff(population) <= 0).all()


@needs_smollm2
@pytest.mark.slow
def test_the_demo_finds_the_known_values_and_writes_the_report(tmp_path):
    report = run_demo(tmp_path / "demo", n_prompts=4000)
    text = report.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=.?https?:", text)
    run, other = (wb.open_run(tmp_path / "demo" / "runs" / name) for name in ("fp32", "int8"))
    assert run.taps == other.taps == TAPS
    assert run.tap(MAIN).shape == (4000, 576)
    for tap, (both, latitude, longitude) in KNOWN.items():
        probe = wb.fit_probe(run, tap, labels=["latitude", "longitude"])
        assert probe.score == pytest.approx(both, abs=0.02)
        assert probe.scores["latitude"] == pytest.approx(latitude, abs=0.02)
        assert probe.scores["longitude"] == pytest.approx(longitude, abs=0.02)
        assert abs(probe.control) < 0.02
    continent = wb.fit_probe(run, MAIN, labels="continent")
    assert 0.64 < continent.score < 0.76  # about 0.66 by a ridge classifier; a logistic one reads a little more
    assert continent.baseline == pytest.approx(0.51, abs=0.01)
    error = {drift.tap: drift.error_mean for drift in wb.compare(run, other).taps}
    assert 0.01 < error[MAIN] < 0.05
