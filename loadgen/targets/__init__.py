"""The dialects that a target may speak. Keys are the ``dialect`` of a scenario's target block."""

from __future__ import annotations

from loadgen.targets.base import Dialect
from loadgen.targets.openai import OpenAIChat, OpenAICompletions

TARGETS: dict[str, type[Dialect]] = {
    "openai_chat": OpenAIChat,
    "openai_completions": OpenAICompletions,
}

__all__ = ["TARGETS", "Dialect", "OpenAIChat", "OpenAICompletions"]
