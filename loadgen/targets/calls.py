"""Tool calls of a conversation, out of the words of OpenAI chat."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from loadgen.text import Message


class Call(NamedTuple):
    id: str
    name: str
    arguments: str
    """JSON as text."""

    @property
    def input(self) -> dict[str, Any]:
        """The arguments as an object; ``{}`` for text that is none."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def calls_of(message: Message) -> list[Call]:
    """The calls of an assistant message, in order."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        text = json.dumps(arguments) if isinstance(arguments, dict) else str(arguments or "{}")
        found.append(Call(str(call.get("id") or ""), str(function.get("name") or ""), text))
    return found
