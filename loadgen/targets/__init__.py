"""The dialects that a target may speak. Keys are the ``dialect`` of a scenario's target block."""

from __future__ import annotations

from loadgen.targets.anthropic import AnthropicMessages
from loadgen.targets.base import Dialect
from loadgen.targets.openai import OpenAIChat, OpenAICompletions
from loadgen.targets.responses import OpenAIResponses

TARGETS: dict[str, type[Dialect]] = {
    "openai_chat": OpenAIChat,
    "openai_completions": OpenAICompletions,
    "openai_responses": OpenAIResponses,
    "anthropic_messages": AnthropicMessages,
}

__all__ = ["TARGETS", "AnthropicMessages", "Dialect", "OpenAIChat", "OpenAICompletions", "OpenAIResponses"]
