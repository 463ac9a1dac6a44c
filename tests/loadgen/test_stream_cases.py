"""Times, counts and outcomes of streams that real servers have been seen to send.

The cases are replayed through a Timeline as a driver would feed it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.outcomes import Cut
from loadgen.targets import TARGETS, Dialect
from loadgen.timeline import Exchange, Timeline
from results.record import Outcome, Record

CASES = Path(__file__).parent.parent / "cases" / "loadgen"
MS = 1_000_000
T0 = 7 * MS
"""t_start on the clock of these tests."""

INHERITED = ("kind", "api", "request", "http_status", "content_type", "cancel_at_ms", "clock")


@dataclass(frozen=True)
class Case:
    id: str
    body: dict[str, Any]

    @property
    def segments(self) -> list[tuple[int, bytes]]:
        return [(round(t * MS), _bytes(data)) for t, data in self.body["segments"]]


def stream_cases() -> Iterator[Case]:
    for path in sorted(CASES.glob("*C*.json")):
        parent = json.loads(path.read_text())
        own = {key: value for key, value in parent.items() if key != "variants"}
        inherited = {key: parent[key] for key in INHERITED if key in parent}
        for body in (own, *({**inherited, **variant} for variant in parent.get("variants", []))):
            if body["kind"] == "stream":
                yield Case(body["id"], body)


def replay(case: Case, segments: list[tuple[int, bytes]] | None = None) -> Exchange:
    """Feed the case's reads, hang up where it says so (a cancel, or a limit of the client), and close."""
    body = case.body
    timeline = Timeline(_dialect(body.get("api", "chat")))
    cancel_at = body.get("cancel_at_ms")
    timeline.connected(T0, False)
    timeline.sent(T0)
    record = Record(0, "chat", "window", Outcome.UNKNOWN, due=0, start=0)
    cut = None
    if not case.segments:
        _head(timeline, case, 0)
    for t, data in case.segments if segments is None else segments:
        if cancel_at is not None and t > cancel_at * MS:
            cut = Cut("plan")
            break
        if timeline.status is None:
            _head(timeline, case, t)
        timeline.data(T0 + t, data)
        if timeline.over:
            record.closed = t
            break
    else:
        cut, record.closed = _end(timeline, body["end"])
    exchange = timeline.close(record, T0, cut, _tokenizer(body.get("request", {}).get("tokenizer")))
    record.cancel_missed = cancel_at is not None and record.outcome is Outcome.COMPLETED
    return exchange


def _head(timeline: Timeline, case: Case, t: int) -> None:
    kind = {"content-type": case.body.get("content_type", "text/event-stream")}
    timeline.headers(T0 + t, case.body.get("http_status", 200), kind)


def _end(timeline: Timeline, end: list[Any]) -> tuple[Cut | None, int]:
    """``[t_ms, how]``, or ``["timeout", t_ms, limit]``: the client gives up."""
    if end[0] == "timeout":
        return Cut("timeout", end[2]), round(end[1] * MS)
    at, how = end
    timeline.closed(T0 + round(at * MS), how, "")
    return None, round(at * MS)


def _dialect(api: str) -> Dialect:
    return TARGETS[f"openai_{api}"](model="m")  # type: ignore[call-arg]


def _bytes(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, list):
        return b"".join(_bytes(part) for part in data)
    if "b64" in data:
        return base64.b64decode(data["b64"])
    return str(data["repeat"]).encode() * int(data["times"])


def _tokenizer(name: str | None) -> Callable[[str], int] | None:
    """The cases' toy: a run of spaces is one token, a run of anything else is one."""
    return None if name is None else lambda text: len(re.findall(r" +|[^ ]+", text))


ALL = list(stream_cases())
WARNINGS = {"missing_done", "missing_finish_reason", "unterminated_event", "tokenizer_mismatch"}


def ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6


def facts(exchange: Exchange) -> dict[str, Any]:
    """The keys of the cases, from a record; formulas of MEASUREMENT 3."""
    r = exchange.record
    gaps = [(b - a) / 1000 for a, b in zip(r.event_us, r.event_us[1:], strict=False)]
    hidden = "hidden_reasoning" in r.warnings
    return {
        "outcome": r.outcome.value,
        "warnings": sorted(WARNINGS & set(r.warnings)),
        "ttft_ms": ms(r.first_token),
        "ttfo_ms": ms(r.first_visible),
        "t_last_ms": ms(r.last_token),
        "e2e_ms": ms(r.last_token),
        "t_terminal_ms": ms(r.terminal),
        "completed_at_ms": ms(r.closed),
        "stream_close_ms": ms(_minus(r.terminal, r.last_token)),
        "think_gap_ms": ms(exchange.think_gap_ns),
        "max_gap_ms": max(gaps, default=None),
        "n_in": r.n_in,
        "n_out": r.n_out,
        "n_out_source": r.n_out_source,
        "n_out_estimated": r.n_out_source in ("tokenizer", "events"),
        "n_reasoning": r.n_reasoning,
        "hidden_reasoning": hidden,
        "k_first": r.k_first,
        "tokens_per_event": r.event_tokens,
        "tpot_ms": _tpot(r, (r.n_out or 0) - (r.n_reasoning or 0) * hidden - r.k_first),
        "tpot_vllm_ms": _tpot(r, (r.n_out or 0) - 1),
        "icl_ms": gaps,
        "itl_seen": _itl_seen(r, gaps),
        "text": exchange.text,
        "text_length": len(exchange.text),
        "reasoning_text": exchange.reasoning,
        "tool_calls": exchange.tool_calls,
        "finish_reason": r.finish,
        "coalesced_events": r.coalesced,
        "cancel_missed": r.cancel_missed,
        "in_completed_latency": r.outcome is Outcome.COMPLETED,
        "counts_as_error": r.outcome not in (Outcome.COMPLETED, Outcome.CANCELLED_BY_PLAN),
        "phase": "streaming" if r.first_token is not None else "before_first_token",
        "tokens_cancelled": r.n_out or 0,
        "in_ttft_distribution": r.outcome is Outcome.COMPLETED and r.first_token is not None,
        "connection_reusable": False,
    }


def _minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


def _tpot(r: Record, tokens: int) -> float | None:
    if r.first_token is None or r.last_token is None or tokens <= 0:
        return None
    return (r.last_token - r.first_token) / 1e6 / tokens


def _itl_seen(r: Record, gaps: list[float]) -> list[float] | None:
    if r.event_tokens is None:
        return None
    pairs = zip(gaps, r.event_tokens[1:], strict=True)
    return [seen for gap, n in pairs for seen in (gap, *[0.0] * (n - 1))]


# Judged by results: SLOs, per-token series, one-second bins.
NOT_OURS = {"good", "slo_vacuous", "itl_smooth", "itl_seen_stats", "itl_reason", "peak_tokens_1s"}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_every_stream_case_gives_the_expected_times_counts_and_outcome(case: Case) -> None:
    """What the case says must be seen is seen, to the microsecond."""
    got = facts(replay(case))
    for key, expected in case.body["expect"].items():
        if key in NOT_OURS:
            continue
        first = expected[0] if isinstance(expected, list) and expected else expected
        number = isinstance(first, float | int) and not isinstance(first, bool)
        assert got[key] == (pytest.approx(expected, abs=0.001) if number else expected), key


STABLE = (
    *("outcome", "warnings", "text", "reasoning_text", "tool_calls", "finish_reason"),
    *("n_in", "n_out", "n_out_source", "k_first", "tokens_per_event", "icl_ms"),
)
"""What no cut may change: a piece carries the time of the segment that held it."""


@pytest.mark.parametrize("case", [c for c in ALL if c.segments], ids=lambda case: case.id)
def test_cutting_the_bytes_anywhere_else_changes_no_text_count_or_outcome(case: Case) -> None:
    """Each segment is cut in two at an offset, for every offset: the same answer comes out."""
    whole = facts(replay(case))
    longest = max(len(data) for _, data in case.segments)
    for offset in range(0, longest, 1 if longest < 400 else max(37, longest // 60)):
        pieces = [(t, part) for t, data in case.segments for part in (data[:offset], data[offset:]) if part]
        cut = facts(replay(case, pieces))
        assert {k: cut[k] for k in STABLE} == {k: whole[k] for k in STABLE}, offset
