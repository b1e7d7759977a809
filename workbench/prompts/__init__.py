"""Prompts: the texts (or token ids) that a run reads, with the columns that describe them."""

from __future__ import annotations

from workbench.prompts.loading import load_prompts
from workbench.prompts.promptset import PromptSet

__all__ = ["PromptSet", "load_prompts"]
