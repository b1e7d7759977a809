"""Runtime: prompts cut into passes of about equal length, run one after another into a sink."""

from __future__ import annotations

from workbench.runtime.passes import BatchPlan, Window, plan_batches
from workbench.runtime.runner import run_plan

__all__ = ["BatchPlan", "Window", "plan_batches", "run_plan"]
