"""An answer put together from its events: text, token times and counts, usage, finish, error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.sse import Event
from loadgen.targets.base import Dialect
from loadgen.targets.reading import ChoiceDelta, InBandError, Reading, find_error

DONE = "[DONE]"


@dataclass(slots=True)
class Answer:
    """What has been understood so far. Times are ns on the client's clock; an event's time is that of
    the read that completed it (MEASUREMENT C3)."""

    dialect: Dialect
    first_event: int | None = None
    first_visible: int | None = None
    last_reasoning: int | None = None
    """Of the reasoning events up to the first visible one (think_gap)."""
    finish_at: int | None = None
    done_at: int | None = None
    token_times: list[int] = field(default_factory=list)
    token_counts: list[int | None] = field(default_factory=list)
    coalesced: int = 0
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finishes: dict[int, str | None] = field(default_factory=dict)
    error: InBandError | None = None
    unterminated: bool = False
    _counted: int | None = 0
    """usage.completion_tokens as of the last token-bearing event; None if that event had no usage."""

    def read(self, t: int, events: list[Event]) -> None:
        """Take the events that one read completed at ``t``."""
        before = len(self.token_times)
        for event in events:
            self._event(t, event)
        self.coalesced += max(0, len(self.token_times) - before - 1)

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason."""
        return bool(self.finishes) and all(self.finishes.values())

    @property
    def tokens(self) -> int:
        """Output tokens seen so far; an event that does not say counts as one."""
        return sum(1 if count is None else count for count in self.token_counts)

    def whole(self, t: int, payload: Mapping[str, Any]) -> None:
        """Take an answer that came in one piece: nothing in it has a time of its own."""
        reading = self.dialect.read(dict(payload))
        self.error = reading.error
        self._merge(reading.usage)
        for choice in reading.choices:
            self._assemble(choice)
        if self.finished:
            self.finish_at = self.done_at = t

    def _event(self, t: int, event: Event) -> None:
        if self.done_at is not None:
            return
        data = event.data.strip()
        payload = None if data == DONE else _parsed(data)
        if not event.terminated:
            if data != DONE and payload is None:
                return  # cut off in the middle, not an event
            self.unterminated = True
        self.first_event = t if self.first_event is None else self.first_event
        if data == DONE:
            self.done_at = t
        elif payload is None or event.type == "error":
            shape = data if payload is None else payload
            found = find_error(shape, event.type) or InBandError(f"event is not JSON: {data[:200]}")
            self.error = self.error or found
        elif isinstance(payload, dict):
            self._payload(t, self.dialect.read(payload))
        else:
            self.error = self.error or find_error(payload)

    def _payload(self, t: int, reading: Reading) -> None:
        self.error = self.error or reading.error
        counted = _completion_tokens(reading.usage)
        bears = any(choice.bears_tokens for choice in reading.choices)
        if reading.choices and not bears and not any(choice.finish for choice in reading.choices):
            # A special token that shows as nothing still is a token, if usage says so (C5).
            bears = counted is not None and counted > (_completion_tokens(self.usage) or 0)
        self._merge(reading.usage)
        if bears:
            self._tokens(t, reading, counted)
        for choice in reading.choices:
            self._assemble(choice)
            if choice.finish:
                self.finish_at = t

    def _tokens(self, t: int, reading: Reading, counted: int | None) -> None:
        self.token_times.append(t)
        said = [choice.count for choice in reading.choices if choice.count is not None]
        if said:
            self.token_counts.append(sum(said))
        elif counted is not None and self._counted is not None:
            self.token_counts.append(max(0, counted - self._counted))
        else:
            self.token_counts.append(None)
        self._counted = counted
        if self.first_visible is None:
            if any(choice.reasoning for choice in reading.choices):
                self.last_reasoning = t
            if any(choice.visible for choice in reading.choices):
                self.first_visible = t

    def _assemble(self, choice: ChoiceDelta) -> None:
        if choice.finish or choice.index not in self.finishes:
            self.finishes[choice.index] = choice.finish
        if choice.index != 0:
            return  # one timeline and text per choice (C13); the plan asks for one
        self.text.append(choice.content)
        self.reasoning.append(choice.reasoning)
        self.ids.extend(choice.ids or ())
        for delta in choice.tools:
            call = self.tools.setdefault(
                delta.index, {"index": delta.index, "id": None, "name": None, "arguments": ""}
            )
            call["id"] = call["id"] or delta.id
            call["name"] = call["name"] or delta.name
            call["arguments"] += delta.arguments

    def _merge(self, usage: Mapping[str, Any] | None) -> None:
        """By field, the last value that is not null wins (C9)."""
        _merge(self.usage, usage or {})


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping):
            inner = into.get(key)
            into[key] = inner if isinstance(inner, dict) else {}
            _merge(into[key], value)
        elif value is not None:
            into[key] = value


def _completion_tokens(usage: Mapping[str, Any] | None) -> int | None:
    value = (usage or {}).get("completion_tokens")
    return value if isinstance(value, int) else None


def _parsed(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
