"""Write the figures of README.md from the result files: python benchmarks/readme.py"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import quantiles
from typing import Any

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
        '"Products alone" are the model\'s matrix products and nothing else, without packing of the weights.',
        f"Stopping at `blocks.5.resid_post` costs {early:.0%} of `final_norm`.",
        f"Prompts of 7 to 20 tokens (cities) run at {cities:.0%} of the full-length rate.",
        "",
    ]
    memory = load("memory")
    if memory is not None:
        peak, weights = memory["figures"]["peak bytes"], memory["figures"]["fp32 weight bytes"]
        lines += [
            f"Peak memory of a process that opens the engine and extracts: {peak['fp32'] / 1e9:.2f} GB in fp32,",
            f"{peak['int8'] / 1e9:.2f} GB with 8-bit weights; the weights alone are {weights / 1e9:.2f} GB in fp32",
            f"(`{memory['command']}`).",
            "",
        ]
    return lines


def engines() -> list[str]:
    result = load("engines")
    if result is None or "build_seconds_fp32" not in result["figures"]:
        return []
    figures = result["figures"]
    lines = [
        f"**Builds of one checkpoint**, SmolLM2-135M, whose file is Q4_1 already ({where(result)}).",
        "Errors are those of `final_norm` against float32, mean and worst token, on the prompts of the build and on",
        "text that no build has seen:",
        "",
        "| build | MB | error, build's prompts | error, other text | tokens per second, in times of `cacheless` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, one in figures["builds"].items():
        if "refused" in one:
            lines.append(f"| {name} | | refused: {one['refused'].partition('; got ')[2].split(' (')[0]} | | |")
            continue
        text = f"{one['text_mean_error']:.1%}, {one['text_worst_token']:.0%}" if "text_mean_error" in one else ""
        fast = f"{one['times_fp32']:.2f}" if "times_fp32" in one else "emulated" if one["emulated"] else ""
        kept = f", {one['kept_layers']} matrices kept" if one["kept_layers"] else ""
        error = f"{one['reference_mean_error']:.1%}, {one['reference_worst_token']:.0%}"
        lines.append(f"| {name}{kept} | {one['plan_bytes'] / 1e6:,.0f} | {error} | {text} | {fast} |")
    rates, seconds, ahead = (
        figures[key] for key in ("product_gflops_in_openvino", "build_seconds_fp32", "ahead_of_time")
    )
    lines += [
        "",
        f"An fp32 build takes {seconds['with_second_plan']:.1f} s, its plan written twice, verified and opened;",
        f"the check of a contract at load {figures['load']['contract_check_ms']:.1f} ms besides hashing, which runs at",
        f"{figures['load']['hash_gb_per_s']:.2f} GB/s.",
    ]
    if ahead is not None:
        lines.append(
            f"{ahead['backend'].replace('tensorrt_rtx', 'TensorRT-RTX')} writes the FP8 plan for Blackwell in "
            f"{ahead['plan_seconds']:.0f} s on this CPU."
        )
    if rates is not None:
        eight = f"{rates['int8, 32']} and {rates['int8, 64']} in 8 bits with groups of 32 and 64"
        lines += [
            f"One product alone in OpenVINO runs at {rates['float32']} GFLOP/s in float32, {rates['bfloat16']} in",
            f"bfloat16, {eight}.",
        ]
        if rates["bfloat16"] < rates["float32"]:
            lines += [
                "So products in bfloat16 cannot be faster than in float32 on this processor, which shows no AMX: the",
                "bf16 build on OpenVINO holds its matrices in bfloat16 there, and multiplies in float32.",
            ]
    return [*lines, ""]


def speed(name: str, figures: dict, share: str) -> str:
    return f"| {name} | {figures['tokens_per_second']:,} | {figures['tflops']:,.0f} | {share} |"


def tensorrt() -> list[str]:
    result = load("tensorrt_h200")
    if result is None:
        return []
    figures, ratios, gpu = result["figures"], result["ratios"], result["machine"]["gpu"]
    ceiling = figures["ceiling_tflops"]
    fp8, bf16, fp16 = (figures[f"engine {name}"]["delivered"]["256"] for name in ("fp8", "bf16", "fp16"))
    eager, compiled = figures["transformers bf16 sdpa"], figures["torch.compile bf16"]["to host"]
    build = figures["engine bf16"]["build"]
    lines = [
        f"**Reading states on a GPU**, 7B shape with random weights, {result['shape']['batch']} prompts of 128 tokens,",
        f"states delivered to host memory ({gpu['name']}, driver {gpu['driver']},",
        f"TensorRT {result['versions']['tensorrt']}, {result['date']}; `{result['command']}`):",
        "",
        "| reader | tokens per second | TFLOP/s | share of the sustained GEMM ceiling |",
        "| --- | --- | --- | --- |",
        speed("TensorRT FP8, own kernels", fp8, f"{fp8['tflops'] / ceiling['float8']:.1%}"),
        speed("TensorRT fp16, own kernels", fp16, f"{fp16['tflops'] / ceiling['bfloat16']:.1%} (of bf16)"),
        speed("TensorRT bf16, own kernels", bf16, f"{bf16['tflops'] / ceiling['bfloat16']:.1%}"),
        speed("torch.compile bf16", compiled, ""),
        speed("transformers bf16, sdpa", eager["to host"], ""),
        speed("transformers bf16, sdpa, states as float32 arrays", eager["to host as float32 numpy"], ""),
        "",
        f"FP8 is {ratios['fp8 over transformers, states to host']:.2f} times transformers where both deliver bf16, "
        f"{ratios['fp8 over transformers, states as numpy float32']:.2f} times",
        "where that goes on to NumPy arrays, which for it are float32; "
        f"{ratios['fp8 over torch.compile, states to host']:.2f} times torch.compile and",
        f"{ratios['fp8 over bf16']:.2f} times our bf16. Mixed lengths run at "
        f"{ratios['fp8 mixed lengths, share of full length']:.0%} (FP8) and "
        f"{ratios['bf16 mixed lengths, share of full length']:.0%} (bf16) of the full-length rate.",
        *margins(figures, ratios),
        f"The bf16 build took {build['seconds']:.0f} s and "
        f"{build['host_bytes_over_start'] / build['weight_bytes']:.2f} times the bytes of the weights in host memory;",
        "with the pages of the mapped file, which the system may drop, "
        f"{build['host_bytes_with_mapped_pages_over_start'] / build['weight_bytes']:.2f} times.",
        "",
    ]
    return lines + sequence_on_a_card(figures) + smollm2_on_a_card()


def margins(figures: dict[str, Any], ratios: dict[str, float]) -> list[str]:
    """What bf16 gains, and what more taps and kept layers cost."""
    eager, ceiling = figures["transformers bf16 sdpa"]["to host"]["tflops"], figures["ceiling_tflops"]["bfloat16"]
    kept = figures["kept layers fp8 of 4 layers, milliseconds a pass"]
    taps = ratios["all residual taps at the last token, slower by"]
    return [
        f"bf16 is {ratios['bf16 over transformers, states to host']:.2f} and "
        f"{ratios['bf16 over transformers, states as numpy float32']:.2f} times transformers in the same two forms;",
        f"1.5 times the first would be {1.5 * eager / ceiling:.0%} of the ceiling. In four layers in FP8, all residual",
        f"taps at the last token beside the final norm cost {taps:.1%}, and keeping every down projection in bf16",
        f"{kept['every down'] / kept['none'] - 1:.0%}.",
    ]


def sequence_on_a_card(figures: dict[str, Any]) -> list[str]:
    """Builds of one shape: what the cache takes, and how many prompts fit without it."""
    cached = figures.get("engine bf16 with cache and one token")
    if cached is None:
        return []
    rows = [
        (
            "bf16 with cache and one token",
            f"{cached['on card']['tokens_per_second']:,} (nothing delivered)",
            cached["cache_bytes"],
        ),
        *(
            (f"{name}, states alone", f"{figures[f'engine {name}']['delivered']['256']['tokens_per_second']:,}", 0)
            for name in ("bf16", "fp8")
        ),
    ]
    lines = [
        "The sequence of builds at that shape (memory of plan, scratch and buffers at 256 prompts; the largest batch",
        "follows from what grows with it):",
        "",
        "| build | tokens per second | GB on the card | of it cache | largest batch |",
        "| --- | --- | --- | --- | --- |",
    ]
    memory = figures["memory"]
    for (name, rate, cache), key in zip(
        rows, ("engine bf16 with cache and one token", "engine bf16", "engine fp8"), strict=True
    ):
        gigabytes, most = memory[key]["card_bytes_at_batch"] / 1e9, memory[key]["largest_batch_computed"]
        lines.append(f"| {name} | {rate} | {gigabytes:.1f} | {f'{cache / 1e9:.1f}' if cache else 'none'} | {most:,} |")
    return [*lines, ""]


def share(error: float) -> str:
    """Per cent, or the number itself where that would read as nothing."""
    return f"{error:.1%}" if error >= 1e-3 else f"{error:.1e}"


def smollm2_on_a_card() -> list[str]:
    result = load("tensorrt_smollm2_h200")
    if result is None:
        return []
    lines = [
        f"SmolLM2-135M on such a card, real weights, all tokens into a run folder (`{result['command']}`):",
        "",
        "| engine | error against float32, mean and worst token | tokens per second, end to end | card memory |",
        "| --- | --- | --- | --- |",
    ]
    for name, figures in result["figures"].items():
        if isinstance(figures, str):
            found = re.search(r"got (mean \S+, worst \S+)", figures)
            lines.append(f"| {name.split()[0]} | refused: {found[1] if found else figures} | | |")
            continue
        error, whole = figures["error_against_float32"], figures["extraction"]["tokens_per_second"]
        kept = f", {figures['kept_layers']} matrices kept in bf16" if figures["kept_layers"] else ""
        own = ", own kernels" if name.endswith("kernels") else ""
        lines.append(
            f"| {name.split()[0]}{own}{kept} | {share(error['mean'])}, {share(error['worst'])} | {whole:,} "
            f"| {figures['card_bytes'] / 1e9:.2f} GB |"
        )
    return [
        *lines,
        "",
        "`benchmarks/results/tensorrt_h200_tests.json` lists what ran on the card, and what did not.",
        "",
    ]


def _middle_half(values: list[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{low:.2f} to {high:.2f}"


def store() -> list[str]:
    result = load("store")
    if result is None:
        return []
    writes, reading, about = (result["write_576"], result["write_4096"]), result["reading"], result["about"]
    least = min(write["ratio_to_dd_fdatasync"] for write in writes)
    longer = " and ".join(f"{write['seconds_over_unhashed']:.2f}" for write in writes)
    pairs = [write["unhashed_ratios"] for write in writes]
    return [
        f"**The store** ({about['cpu']}, {about['date'][:10]}; `{about['command']}`):",
        f"writes at {least:.2f} times the rate of dd with fdatasync, with full durability;",
        f"rows of 576 and of 4,096 take {longer} times as long to write as without checksums (aim: 1.05;",
        f"medians of {len(pairs[0])} pairs, of which half lie within {_middle_half(pairs[0])} and "
        f"{_middle_half(pairs[1])}). Opening",
        f"10 million rows: {result['open_s'] * 1000:.1f} ms; gathering 10,000 of them takes",
        f"{reading['gather_10000_ratio']:.2f} times as long as np.memmap, reading in order runs at "
        f"{reading['sequential_ratio']:.0%} of its speed.",
        "",
    ]


def analysis() -> list[str]:
    result = load("analysis")
    if result is None:
        return []
    figures = result["figures"]
    long, compare, sweep, near = (figures[name] for name in ("pca-long", "compare", "sweep", "neighbours"))
    wide = sorted(figures["pca-wide"]["seconds"]["ours"])[1]
    return [
        f"**Analysis** ({where(result)}):",
        "",
        "| task | seconds | scikit-learn's plain call takes, in times of that |",
        "| --- | --- | --- |",
        f"| PCA to 50, 20,000 x 4,096 | {wide:.1f} | {figures['pca-wide']['sklearn_over_ours']:.1f} |",
        f"| PCA to 50, 1,000,000 x 576, {long['ours']['gb']:.1f} GB beyond the mapping | {long['ours']['s']:.1f} "
        f"| {long['whole_over_ours']:.1f} whole in memory, {long['batches_over_ours']:.0f} in batches |",
        f"| nearest rows of one among 1,000,000 x 576 | {sorted(near['seconds']['ours'])[2]:.2f} "
        f"| {near['sklearn_over_ours']:.1f} |",
        f"| ridge sweep, {sweep['taps']} taps x {sweep['prompts']:,} prompts, with control | {sweep['s']:.0f} | |",
        f"| compare two runs, {compare['rows']:,} rows x {compare['taps']} taps | {compare['s']:.0f} | |",
        "",
    ]


def views() -> list[str]:
    result = load("view")
    if result is None:
        return []
    figures, first = result["figures"], result["figures"].get("first_map")
    beside = {(one["points"], one["words"]): one for one in figures["beside"]}
    lines = [
        f"**One offline report** with two linked maps (Chromium {figures['chromium']}, software rendering; "
        f"{where(result)}):",
        "",
        "| points, words a prompt | bytes | Bokeh | plotly | opens and draws in | lasso | hover |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for report in figures["reports"]:
        others = beside.get((report["points"], report["words"]), {})
        sizes = [f"{others[tool]['bytes']:,}" if tool in others else "" for tool in ("bokeh", "plotly")]
        lines.append(
            f"| {report['points']:,}, {report['words']} | {report['bytes']:,} | {sizes[0]} | {sizes[1]} "
            f"| {report['open_ms'] / 1000:.2f} s | {report['lasso_ms'] / 1000:.2f} s | {report['hover_ms']:.1f} ms |"
        )
    lines += ["", "The same points in other tools, in the same browser: seconds until a screenshot shows them, and for"]
    lines += ["a lasso from the press of the mouse over 40 moves to the selection:", ""]
    lines += ["| tool | 10,000: draw | lasso | 50,000: draw | lasso |", "| --- | --- | --- | --- | --- |"]
    for tool in ("workbench", "bokeh", "plotly", "jupyter-scatter", "embedding-atlas"):
        found = [beside.get((n, 4), {}).get(tool, {}) for n in (10_000, 50_000)]
        cells = [f"{one[name]:.1f}" if name in one else "fails" for one in found for name in ("draw_s", "drag_s")]
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "jupyter-scatter draws one of the two maps, in JupyterLab, and writes no page; Embedding Atlas asks for",
        "WebGPU, which is not there.",
        *([] if first is None else [_first_map(first)]),
        "",
    ]


def _first_map(first: dict) -> str:
    size = f"{first['rows']:,} x {first['width']:,}"
    where_drawn = "after its cell was started, in JupyterLab with a warm kernel"
    return f"The first map of {size} is on screen {first['on_screen_s']:.1f} s {where_drawn}."


SECTIONS = [extraction, engines, tensorrt, store, analysis, views]


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
