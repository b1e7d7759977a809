"""Analysis against scikit-learn's plain calls on the same data, on whatever cores this process may use.

    python benchmarks/bench_analysis.py                  all parts, about fifteen minutes and 9 GB of disk in --folder
    python benchmarks/bench_analysis.py pca-wide sweep   some parts
    python benchmarks/bench_analysis.py --small          every part on a hundredth of the rows, to see that it runs

Memory is what the process holds beyond the mapped files: the peak of anonymous memory, sampled every 10 ms.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import common
import numpy as np
import psutil

from workbench.analysis import compare, sweep_probe
from workbench.analysis.pca import fit_pca
from workbench.index import ExactIndex
from workbench.prompts import PromptSet
from workbench.store import TapSpec, create_run
from workbench.tokens import TokenTable

CONTRACT = {"engine_id": "b" * 64, "digest": "b" * 64}


def spread(rng, n, width, block=20_000):
    """Blocks of rows with falling variance, one massive dimension and a mean, as hidden states have."""
    scale = (np.arange(width) + 1.0) ** -0.5
    scale[3] = 60
    for first in range(0, n, block):
        rows = rng.standard_normal((min(block, n - first), width), dtype=np.float32)
        yield first, rows * scale.astype(np.float32) + 1


def stored(folder, name, n, width, taps, make, dtype="BF16"):
    """A run of n one-token prompts, written in windows; `make(first, rows, tap)` gives the rows of a tap."""
    path = Path(folder) / name
    shutil.rmtree(path, ignore_errors=True)
    prompts = PromptSet(texts=tuple(f"p{i}" for i in range(n)))
    tokens = TokenTable(
        ids=np.zeros(n, np.int32), offsets=np.arange(n + 1, dtype=np.int64), truncated=np.zeros(n, bool),
        original_lengths=np.ones(n, np.int64), lossy=np.zeros(n, bool),
    )  # fmt: skip
    specs = [TapSpec(tap, dtype, width) for tap in taps]
    with create_run(
        path, prompts=prompts, tokens=tokens, taps=specs, positions="last", contract=CONTRACT, provenance={},
        durability="process-crash-only",
    ) as writer:  # fmt: skip
        for first, rows in spread(np.random.default_rng(0), n, width):
            writer.commit(first, first + len(rows), {tap: make(first, rows, at) for at, tap in enumerate(taps)})
        return writer.close()


@contextmanager
def peak_memory(found):
    """Sample the anonymous memory of this process; `found["gb"]` is the peak beyond the start, in 10^9 bytes."""
    own = psutil.Process()
    anonymous = lambda: own.memory_info().rss - own.memory_info().shared  # noqa: E731
    start, top, over = anonymous(), [0], threading.Event()

    def watch():
        while not over.wait(0.01):
            top[0] = max(top[0], anonymous() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        found["gb"] = round(top[0] / 1e9, 3)


def timed(call):
    """Seconds of one call, wall and CPU, and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = call()
    return round(time.perf_counter() - wall, 3), round(time.process_time() - cpu, 3), made


def pca_wide(scale, _folder):
    """PCA-50 of 20,000 x 4,096 in memory."""
    from sklearn.decomposition import PCA

    rows = np.concatenate([rows for _, rows in spread(np.random.default_rng(0), 20_000 // scale, 4096)])
    times = common.rounds(
        {
            "ours": lambda: fit_pca(rows, 50).transform(rows),
            "sklearn": lambda: PCA(50, svd_solver="randomized", random_state=0).fit_transform(rows),
        },
        n=3,
    )
    fitted = fit_pca(rows, 50)
    twin = PCA(50, svd_solver="randomized", random_state=0).fit(rows)
    return {
        "rows": len(rows), "seconds": times, "sklearn_over_ours": common.ratio(times["sklearn"], times["ours"]),
        "limit_s": 5, "residual": fitted.residual,
        "variance_held": {"ours": float(fitted.variance.sum()), "sklearn": float(twin.explained_variance_.sum())},
    }  # fmt: skip


def pca_long(scale, folder):
    """PCA-50 of 1,000,000 x 576, memory-mapped in 16 bits, against scikit-learn on the whole and in batches."""
    from sklearn.decomposition import PCA, IncrementalPCA

    tap = stored(folder, "long", 1_000_000 // scale, 576, ["t"], lambda _, rows, __: rows).tap("t")
    ours, whole = {}, {}
    with peak_memory(ours):
        ours["s"], ours["cpu_s"], fitted = timed(lambda: fit_pca(tap, 50))
        ours["transform_s"] = timed(lambda: fitted.transform(tap))[0]
    with peak_memory(whole):
        whole["s"] = timed(lambda: PCA(50).fit(tap.to_numpy(limit_bytes=1 << 40)))[0]
    model = IncrementalPCA(50)
    batches = timed(lambda: [model.partial_fit(rows) for _, rows in tap.blocks(4096 * 576 * 4) if len(rows) >= 50])[0]
    return {
        "rows": len(tap), "ours": ours, "sklearn_whole": whole, "sklearn_in_batches_s": batches,
        "whole_over_ours": whole["s"] / ours["s"], "batches_over_ours": batches / ours["s"],
        "limit_s": 60, "limit_gb": 1, "residual": fitted.residual,
    }  # fmt: skip


def comparison(scale, folder):
    """Compare two runs of 100,000 rows and 30 taps of width 576."""
    taps = [f"blocks.{i}.resid_post" for i in range(30)]
    n = 100_000 // scale

    def noisy(first, rows, at):
        rng = np.random.default_rng((first, at))
        return rows * (1 + 0.01 * rng.standard_normal(rows.shape, dtype=np.float32))

    a = stored(folder, "a", n, 576, taps, lambda _, rows, __: rows)
    b = stored(folder, "b", n, 576, taps, noisy)
    memory = {}
    with peak_memory(memory):
        wall, cpu, made = timed(lambda: compare(a, b, progress=False))
    return {
        "rows": n,
        "taps": 30,
        "s": wall,
        "cpu_s": cpu,
        "peak": memory,
        "limit_s": 90,
        "sample": made.taps[0].n_sample,
    }


def neighbours(scale, folder):
    """Nearest ten of one row among 1,000,000 x 576, stored in 16 bits."""
    from sklearn.neighbors import NearestNeighbors

    run = stored(folder, "long", 1_000_000 // scale, 576, ["t"], lambda _, rows, __: rows)
    tap = run.tap("t")
    query = tap[17]
    index = ExactIndex(tap)
    first = timed(lambda: index.search(query, 10))[0]
    whole = tap.to_numpy(limit_bytes=1 << 40)
    twin = NearestNeighbors(n_neighbors=10, algorithm="brute", metric="cosine").fit(whole)
    times = common.rounds(
        {"ours": lambda: index.search(query, 10), "sklearn": lambda: twin.kneighbors(query[None])}, n=5
    )
    same = set(index.search(query, 10).rows[0]) == set(twin.kneighbors(query[None])[1][0])
    return {
        "rows": len(tap), "first_s": first, "seconds": times, "limit_s": 0.6, "same_answer": same,
        "sklearn_over_ours": common.ratio(times["sklearn"], times["ours"]),
    }  # fmt: skip


def sweep(scale, folder):
    """Ridge probes of two labels at 30 taps x 4,000 prompts with 20 shuffles, against a plain nested grid search."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n = 4000 // min(scale, 10)
    taps = [f"blocks.{i}.resid_post" for i in range(30)]
    run = stored(folder, "sweep", n, 576, taps, lambda _, rows, at: rows * (1 + at / 30), dtype="F32")
    labels = np.random.default_rng(0).standard_normal((n, 2)) + run.tap(taps[0])[:][:, 10:12]
    wall, cpu, made = timed(lambda: sweep_probe(run, labels, progress=False))
    rows, groups = run.tap(taps[0])[:].astype(np.float64), np.arange(n)

    def plain():
        grid = GridSearchCV(
            make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [10.0**p for p in range(6)]}, cv=GroupKFold(4)
        )
        out = np.empty_like(labels)
        for train, test in GroupKFold(5).split(rows, groups=groups):
            out[test] = grid.fit(rows[train], labels[train], groups=groups[train]).predict(rows[test])
        return out

    one = timed(plain)[0]
    return {
        "prompts": n, "taps": 30, "s": wall, "cpu_s": cpu, "limit_s": 30, "sklearn_one_tap_s": one,
        "sklearn_without_shuffles_over_ours": 30 * one / wall, "score": made.probes[0].score,
    }  # fmt: skip


PARTS = {"pca-wide": pca_wide, "pca-long": pca_long, "compare": comparison, "neighbours": neighbours, "sweep": sweep}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to run (default: all)")
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows; nothing is saved")
    parser.add_argument("--folder", type=Path, help="where the test runs are written (default: a temporary folder)")
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.parts or PARTS:
            figures[name] = PARTS[name](100 if options.small else 1, folder)
            print(name, figures[name], flush=True)
    if not options.small:
        load = psutil.getloadavg()[2]
        figures["load_of_the_machine_over_15_minutes"] = round(load, 2)
        common.save("analysis", figures, "hidden-state-workbench", "numpy", "scipy", "scikit-learn")


if __name__ == "__main__":
    main()
