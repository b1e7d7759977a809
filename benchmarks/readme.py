"""Write the figures of README.md from the result files: python benchmarks/readme.py"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
START, END = "<!-- figures -->", "<!-- /figures -->"


def load(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def where(result: dict) -> str:
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {result['date']}; `{result['command']}`"


def extraction() -> list[str]:
    result = load("extraction")
    if result is None:
        return []
    figures = result["figures"]
    speed = figures["tokens per second, median"]
    ratios = figures["ratios, median over rounds"]
    lines = [
        "**Reading states on a CPU**, SmolLM2-135M, prompts of 128 tokens, last token, states in a stored run",
        f"({where(result)}):",
        "",
        "| reader | tokens per second | workbench is faster by |",
        "| --- | --- | --- |",
        f"| workbench fp32, into a run folder | {speed['workbench']:,.0f} | |",
    ]
    for name, value in speed.items():
        ratio = ratios.get(f"speed against {name}")
        if ratio is not None:
            lines.append(f"| {name} | {value:,.0f} | {ratio:.2f} |")
    early = ratios["cost of blocks.5.resid_post"]
    cities = ratios["tokens per second, cities against 128 tokens"]
    lines += [
        "",
        f"Stopping at `blocks.5.resid_post` costs {early:.0%} of `final_norm`.",
        f"Prompts of 7 to 20 tokens (cities) run at {cities:.0%} of the full-length rate.",
        "",
    ]
    return lines


SECTIONS = [extraction]


def figures() -> str:
    """The section between the markers."""
    return "\n".join(line for section in SECTIONS for line in section())


def rendered(text: str) -> str:
    """README with its figures section made anew."""
    head, rest = text.split(START)
    _, tail = rest.split(END)
    return f"{head}{START}\n{figures()}\n{END}{tail}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rendered(readme.read_text(encoding="utf-8")), encoding="utf-8")
