"""Versions of TensorRT-LLM in order, and since which one what is there."""

from __future__ import annotations

import re

from workbench.errors import ContractError

KV_CACHE_TYPE_SINCE = "0.13.0.dev2024081300"  # trtllm-build --kv_cache_type; before, no decoder without a cache
PERF_KNOBS_SINCE = "0.12.0.dev2024072300"
CONTEXT_PROGRESS_SINCE = "0.15.0.dev2024110500"
EXECUTOR_OUTPUTS_SINCE = "0.17.0.dev2024121700"  # the executor reads marked outputs, by name
ENGINES_UNTIL = "1.2.1"  # the TensorRT engine backend was removed afterwards

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.dev(\d+)|rc(\d+)(?:\.post\d+)?|\.post\d+)?")


def version_order(version: str) -> tuple[int, ...]:
    """Give a version as numbers that sort as versions do: development, candidate, release.

    Raises
    ------
    ContractError
        If it is no version of TensorRT-LLM.
    """
    found = _VERSION.fullmatch(version)
    if not found:
        raise ContractError(
            "a version of TensorRT-LLM must read like 0.16.0, 1.0.0rc4 or 0.15.0.dev2024111200",
            repr(version),
            "Take it from tensorrt_llm/version.py or from the engine's config.json.",
        )
    major, minor, patch, dev, candidate = found.groups()
    stage = (0, int(dev)) if dev else (1, int(candidate)) if candidate else (2, 0)
    return (int(major), int(minor), int(patch), *stage)


def has(version: str, since: str) -> bool:
    """Whether a version is as new as another."""
    return version_order(version) >= version_order(since)
