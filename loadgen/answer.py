"""An answer put together from its events: text, token times and counts, usage, finish, error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.payload import NOT_JSON, parsed
from loadgen.sse import BARE, Event
from loadgen.targets.base import Dialect
from loadgen.targets.errors import MOST_READ, find_error
from loadgen.targets.reading import ChoiceDelta, InBandError, Reading, ToolDelta
from results.attribution.usage import generated, is_count

DONE = "[DONE]"
_KEEP_ALIVE = frozenset(("ping", "heartbeat", "keepalive", "keep-alive"))


@dataclass(slots=True)
class Choice:
    """One choice with a timeline of its own (MEASUREMENT C13). Times as in `Answer`."""

    token_times: list[int] = field(default_factory=list)
    token_counts: list[int | None] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    """Indexes of token events that were not the only event of their read."""
    coalesced: int = 0
    first_visible: int | None = None
    last_reasoning: int | None = None
    """Of the reasoning events up to the first visible one (think_gap)."""
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    beside: bool = False
    """It holds output that is no text: tool calls, audio; or a refusal, which is not kept."""
    finish: str | None = None
    _latest: dict[int, int] = field(default_factory=dict)
    """By a server's number of a call, where in ``tools`` its pieces go."""

    @property
    def tokens(self) -> int:
        """Output tokens seen so far; an event that does not say counts as one."""
        return sum(1 if count is None else count for count in self.token_counts)

    def token(self, t: int, count: int | None, delta: ChoiceDelta) -> None:
        self.token_times.append(t)
        self.token_counts.append(count)
        if self.first_visible is None:
            if delta.reasoning:
                self.last_reasoning = t
            if delta.visible:
                self.first_visible = t

    def assemble(self, delta: ChoiceDelta) -> None:
        self.finish = delta.finish or self.finish
        if delta.content:
            self.text.append(delta.content)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)
        if delta.ids:
            self.ids.extend(delta.ids)
        if delta.refusal or delta.audio or delta.tools:
            self.beside = True
        for tool in delta.tools:
            self._tool(tool)

    def _tool(self, delta: ToolDelta) -> None:
        """What has a name and an id of its own is a call of its own, also where a server gives all the same
        number; an id alone proves nothing, for some make one up for each piece."""
        latest = self._latest.get(delta.index, delta.index)
        call = self.tools.get(latest)
        if call and delta.name and call["name"] and delta.id and call["id"] not in (None, delta.id):
            latest, call = max(self.tools) + 1, None
        self._latest[delta.index] = latest
        if call is None:
            call = self.tools[latest] = {"index": latest, "id": None, "name": None, "arguments": ""}
        call["id"] = call["id"] or delta.id
        call["name"] = call["name"] or delta.name
        call["arguments"] += delta.arguments


@dataclass(slots=True)
class Answer:
    """What has been understood so far. Times are ns on the client's clock; an event's time is that of
    the read that completed it (MEASUREMENT C3)."""

    dialect: Dialect
    choices: dict[int, Choice] = field(default_factory=dict)
    first_event: int | None = None
    finish_at: int | None = None
    done_at: int | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    error: InBandError | None = None
    unterminated: bool = False
    in_one_piece: bool = False
    whole_count: int | None = None
    """Tokens of an answer in one piece, by its ids or logprobs."""
    _counted: int | None = 0
    """Output tokens by usage as of the last token-bearing event; None if that event had no usage."""

    # --- what is known

    @property
    def first(self) -> Choice:
        """The choice that a record is about; the plan asks for one, whatever number a server gives it."""
        if not self.choices:
            return Choice()
        return self.choices.get(0) or self.choices[min(self.choices)]

    @property
    def token_times(self) -> list[int]:
        """Of the first choice."""
        return self.first.token_times

    @property
    def last_token(self) -> int | None:
        """When any choice last got a token."""
        return max((c.token_times[-1] for c in self.choices.values() if c.token_times), default=None)

    @property
    def tokens(self) -> int:
        """Output tokens of all choices seen so far."""
        return sum(choice.tokens for choice in self.choices.values())

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason."""
        return bool(self.choices) and all(choice.finish for choice in self.choices.values())

    @property
    def ended(self) -> bool:
        """It said its last word, in one way or another."""
        return self.done_at is not None or self.finished

    # --- what comes in

    def read(self, t: int, events: Sequence[Event], alone: bool | None = None) -> Reading | None:
        """Take the events that one read completed at ``t``; gives what the last of them said.

        ``alone``: the read brought one event and nothing of another.
        """
        if len(events) == 1 if alone is None else alone:
            return self._event(t, events[0])
        reading = None
        before = self._sizes()
        for event in events:
            reading = self._event(t, event)
        self._mark_shared(before)
        return reading

    def plain(self, t: int, index: int, text: str, is_reasoning: bool) -> None:
        """Take an event that said nothing but ``text`` of a choice that is known already."""
        choice = self.choices[index]
        choice.token_times.append(t)
        choice.token_counts.append(None)
        self._counted = None
        if not is_reasoning:
            choice.text.append(text)
            return
        choice.reasoning.append(text)
        if choice.first_visible is None:
            choice.last_reasoning = t

    def plain_all(self, t: int, index: int, texts: Sequence[str], is_reasoning: bool) -> None:
        """The same of several events that share a read."""
        before = self._sizes()
        for text in texts:
            self.plain(t, index, text, is_reasoning)
        self._mark_shared(before)

    def whole(self, t: int, payload: Mapping[str, Any]) -> None:
        """Take an answer that came in one piece: nothing in it has a time of its own."""
        reading = self.dialect.read(dict(payload))
        self.error, self.in_one_piece = reading.error, True
        self._merge(reading)
        for delta in reading.choices:
            self._choice(delta.index).assemble(delta)
        counts = [delta.count for delta in reading.choices if delta.count is not None]
        if counts and len(counts) == len(reading.choices):
            self.whole_count = sum(counts)
        if self.choices or reading.done:
            self.finish_at = self.done_at = t

    def _sizes(self) -> dict[int, int]:
        return {index: len(choice.token_times) for index, choice in self.choices.items()}

    def _mark_shared(self, before: Mapping[int, int]) -> None:
        for index, choice in self.choices.items():
            first, end = before.get(index, 0), len(choice.token_times)
            choice.shared.extend(range(first, end))
            choice.coalesced += max(0, end - first - 1)

    def _event(self, t: int, event: Event) -> Reading | None:
        if self.done_at is not None:
            return None
        if event.type == BARE:
            self.error = self.error or find_error(parsed(event.data))
            return None
        data = event.data.strip()
        payload = None if data == DONE else parsed(data)
        if not event.terminated:
            if payload is NOT_JSON:
                return None  # cut off in the middle, not an event
            self.unterminated = True
        if not data or (payload is NOT_JSON and event.type in _KEEP_ALIVE):
            return None
        self.first_event = t if self.first_event is None else self.first_event
        if data == DONE:
            self.done_at = t
        elif payload is NOT_JSON or event.type == "error":
            self._odd(event.type, data if payload is NOT_JSON else payload, data)
        elif isinstance(payload, dict):
            reading = self.dialect.read(payload)
            self._payload(t, reading)
            return reading
        else:
            self.error = self.error or find_error(payload)
        return None

    def _odd(self, event_type: str, shape: object, data: str) -> None:
        """An event that calls itself an error, or that nobody can read."""
        found = find_error(shape, event_type) or InBandError(f"event is not JSON: {data[:MOST_READ]}")
        self.error = self.error or found

    def _payload(self, t: int, reading: Reading) -> None:
        if reading.error is not None:
            self.error = self.error or reading.error
        counted, advanced = None, False
        if reading.usage is not None or reading.timings is not None:
            counted = generated(reading.usage)
            if counted is not None and self._counted is not None:
                advanced = counted > (generated(self.usage) or 0)
            self._merge(reading)
        deltas = reading.choices
        bears = [delta.bears_tokens for delta in deltas]
        if advanced and deltas and not any(bears) and not any(map(self._is_over, deltas)):
            # A special token that shows as nothing still is a token, if usage says so, event by event (C5).
            bears[0] = True
        for delta, token in zip(deltas, bears, strict=True):
            self._delta(t, delta, token, counted)
        if True in bears:
            self._counted = counted
        if reading.done:
            self.done_at = t

    def _delta(self, t: int, delta: ChoiceDelta, token: bool, counted: int | None) -> None:
        choice = self._choice(delta.index)
        if token:
            choice.token(t, self._count(delta, counted), delta)
        choice.assemble(delta)
        if delta.finish:
            self.finish_at = t

    def _is_over(self, delta: ChoiceDelta) -> bool:
        choice = self.choices.get(delta.index)
        return bool(delta.finish or (choice and choice.finish))

    def _count(self, delta: ChoiceDelta, counted: int | None) -> int | None:
        """Tokens of this event: as it says itself, else as usage advanced; usage is of all choices."""
        if delta.count is not None:
            return delta.count
        if counted is None or self._counted is None or len(self.choices) > 1:
            return None
        return max(0, counted - self._counted)

    def _choice(self, index: int) -> Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = Choice()
        return choice

    def _merge(self, reading: Reading) -> None:
        """By field, the last value that says something wins (C9)."""
        _merge(self.usage, reading.usage or {})
        _merge(self.timings, reading.timings or {})


def _merge(into: dict[str, Any], new: Mapping[str, Any], depth: int = 3) -> None:
    """No counter of any vendor is deeper than ``depth``; what is deeper is taken as it is. What is no count,
    such as -1 for "unknown", does not take the place of one."""
    for key, value in new.items():
        before = into.get(key)
        if value is None or (is_count(before) and not is_count(value)):
            continue
        if isinstance(value, dict) and depth:
            into[key] = before if isinstance(before, dict) else {}
            _merge(into[key], value, depth - 1)
        else:
            into[key] = value
