"""Weka's Claude Code sessions: agents with sub-agents, think times and 64-token block ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadgen.plan import Part, Share
from loadgen.streams import stream
from loadgen.tracefiles.base import Place, Untimed, blocks_of
from loadgen.tracefiles.documents import Document, any_shape
from loadgen.tracefiles.errors import Findings, Say, under
from loadgen.tracefiles.fields import (
    Field,
    anything,
    count,
    either,
    maybe,
    seconds,
    take,
    text,
    tokens,
    tokens_or_none,
)
from loadgen.tracefiles.files import sources
from loadgen.tracefiles.ids import id_list, misfit, run_list
from loadgen.tracefiles.recording import Recording, Request, after, common, leading

BLOCK = 64

_TRACE = {
    "id": Field(text),
    "requests": Field(anything),
    "block_size": Field(count),
    "hash_id_scope": Field(either("local", "global"), must=False),
    "tool_tokens": Field(count, must=False),
    "system_tokens": Field(count, must=False),
    "models": Field(anything, must=False),
    "totals": Field(anything, must=False),
}
_REQUEST = {
    "t": Field(seconds),
    "type": Field(either("n", "s", "subagent")),
    "in": Field(tokens),
    "out": Field(tokens_or_none),
    "model": Field(text),
    "blocks": Field(run_list, must=False),
    "hash_ids": Field(id_list, must=False),
    "api_time": Field(maybe(seconds), must=False),
    "think_time": Field(maybe(seconds), must=False),
    "ttft": Field(maybe(seconds), must=False),
    "input_types": Field(anything, must=False),
    "output_types": Field(anything, must=False),
    "stop": Field(anything, must=False),
}
_SUBAGENT = {
    "t": Field(seconds),
    "type": Field(either("subagent")),
    "requests": Field(anything),
    "duration_ms": Field(maybe(count), must=False),
    **{
        key: Field(anything, must=False)
        for key in ("agent_id", "subagent_type", "total_tokens", "tool_use_count", "status", "models")
    },
    "tool_tokens": Field(maybe(count), must=False),
    "system_tokens": Field(maybe(count), must=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weka(Untimed):
    """Weka JSON of agent sessions, raw (`hash_ids`) or packed (`blocks`): one trace a line, one a file, or a
    folder of such files. Block ids hold 64 tokens and are valid inside one trace. `arrival` says when
    sessions start; a sub-agent is a lineage of its own.

    For a share `warm_prefix` of the sessions the first `tool_tokens + system_tokens` of their prompts are
    the same for all of them, as if they used one set of tools.
    """

    warm_prefix: Share = 0.0

    def read(self, path: Path) -> Recording:
        found = Findings()
        traces: list[_Trace] = []
        files: list[str] = []
        digest = ""
        seen: dict[str, str] = {}
        for source in sources(path, found):
            for document in any_shape(source):
                say = source.say(document.line)
                trace = _read(document, say)
                if trace is None:
                    continue
                if trace.id in seen:
                    say(f"id: {trace.id!r} stands at {seen[trace.id]} too")
                seen.setdefault(trace.id, f"{source.path.name}:{document.line}")
                traces.append(trace)
                files.append(str(source.path))
            digest = source.chained(digest)
        found.refuse()
        facts = _facts(traces)
        return Recording(
            str(path),
            digest,
            [tuple(trace.requests) for trace in traces],
            None,
            facts,
            scopes=["" if trace.scope == "global" else f"/{trace.id}" for trace in traces],
            heads=[trace.head for trace in traces],
            files=files,
        )

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        recording = self.replay.recording
        again = f"/round{at.round}" if at.round else ""
        scope = f"trace/{recording.digest}{recording.scopes[at.session]}{again}"
        shared = self._shared(request, at)
        parts = []
        if shared:
            warm = f"trace/{recording.digest}/warm"
            parts.append(Part("system", shared * BLOCK, warm, blocks=((0, shared),), block_tokens=BLOCK))
        if rest := request.input - shared * BLOCK:
            runs = after(blocks_of(request, BLOCK), shared)
            # Less than a block, and so without an id: text of its own.
            key = scope if runs else f"{scope}/rest{at.index}"
            parts.append(Part("user", rest, key, blocks=runs, block_tokens=BLOCK if runs else 0))
        return tuple(parts)

    def _shared(self, request: Request, at: Place) -> int:
        """Leading blocks that the request has in common with all warm sessions."""
        if not self.warm_prefix or request.lineage:
            return 0
        recording = self.replay.recording
        if _drawn(self.seed or 0, recording.digest, at.session, at.round) >= self.warm_prefix:
            return 0
        head = leading(recording.sessions[at.session][0].blocks, recording.heads[at.session])
        return min(common(head, request.blocks), request.input // BLOCK)


@dataclass(slots=True)
class _Trace:
    """One trace while it is read."""

    id: str = ""
    scope: str = "local"
    head: int = 0
    requests: list[Request] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lineage: int = 0
    """Of the requests that are being added."""


def _read(document: Document, say: Say) -> _Trace | None:
    values = take(document.value, _TRACE, say)
    if values is None:
        return None
    if values["block_size"] != BLOCK:
        say(f"block_size: blocks of {BLOCK} tokens are known, not of {values['block_size']}")
        return None
    head = (values.get("tool_tokens", 0) + values.get("system_tokens", 0)) // BLOCK
    trace = _Trace(values["id"], values.get("hash_id_scope", "local"), head)
    wrong: list[str] = []
    _lineage(trace, values["requests"], document.line, wrong.append, "requests", None)
    for what in wrong or (() if trace.requests else ("requests: none that could be sent",)):
        say(what)
    return trace


def _lineage(
    trace: _Trace, entries: Any, line: int, say: Say, path: str, parent: tuple[int, int] | None
) -> None:
    """Add the requests of a session or sub-agent, each after the one before it. ``parent`` = the request
    that called the sub-agent, and the time in ns from its end to the first request."""
    if not isinstance(entries, list):
        say(f"{path}: expected a list of requests")
        return
    lineage = trace.lineage
    before: dict[str, Any] | None = None
    last = parent[0] if parent else None
    for k, entry in enumerate(entries):
        here = under(say, f"{path}[{k}]")
        values = _entry(entry, here)
        if values is None:
            continue
        # The t of a sub-agent whose duration is known is when it ended.
        if before is not None and values.get("duration_ms") is None and values["t"] < before["t"]:
            here("t: earlier than the request before it")
        if values["type"] == "subagent":
            _subagent(trace, values, line, say, f"{path}[{k}]", last, before)
            continue
        think = _think(values, before) if before else parent[1] if parent else None
        _count(trace.counts, values, before)
        blocks = values.get("blocks", values.get("hash_ids", ()))
        asked = max(1, values["out"])
        trace.requests.append(Request(line, values["in"], asked, think, last, lineage=lineage, blocks=blocks))
        before, last = values, len(trace.requests) - 1


def _entry(entry: Any, say: Say) -> dict[str, Any] | None:
    if not isinstance(entry, dict):
        say("expected an object {..}")
        return None
    if entry.get("type") == "subagent":
        return take(entry, _SUBAGENT, say)
    values = take(entry, _REQUEST, say)
    if values is None:
        return None
    if ("blocks" in values) == ("hash_ids" in values):
        say("a request has either blocks or hash_ids")
        return None
    key = "blocks" if "blocks" in values else "hash_ids"
    if wrong := misfit(values[key], values["in"], BLOCK, whole_only=True):
        say(f"{key}: {wrong}")
    return values


def _subagent(
    trace: _Trace,
    values: dict[str, Any],
    line: int,
    say: Say,
    path: str,
    caller: int | None,
    before: dict[str, Any] | None,
) -> None:
    """A sub-agent's ``t`` is when it ended if its duration is known, else when it started."""
    if caller is None or before is None:
        say(f"{path}: a sub-agent before the first request of its session")
        return
    start = values["t"] - (values.get("duration_ms") or 0) * 1_000_000
    think = max(0, start - before["t"] - (before.get("api_time") or 0))
    trace.counts["subagents"] += 1
    own, trace.lineage = trace.lineage, trace.counts["subagents"]
    _lineage(trace, values["requests"], line, say, f"{path}.requests", (caller, think))
    trace.lineage = own


def _think(values: dict[str, Any], before: dict[str, Any]) -> int:
    """The recorded think time, or the gap that the times leave."""
    if values.get("think_time") is not None:
        return int(values["think_time"])
    return max(0, int(values["t"] - before["t"] - (before.get("api_time") or 0)))


def _count(counts: Counter[str], values: dict[str, Any], before: dict[str, Any] | None) -> None:
    counts["requests"] += 1
    counts["streamed" if values["type"] == "s" else "not_streamed"] += 1
    counts["without_output"] += values["out"] == 0
    counts["without_think_time"] += values.get("think_time") is None
    counts["model_switches"] += before is not None and values["model"] != before["model"]


def _facts(traces: list[_Trace]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for trace in traces:
        counts += trace.counts
    return {"rows": counts.pop("requests", 0), "block_tokens": BLOCK, **counts}


@lru_cache(maxsize=4096)
def _drawn(seed: int, digest: str, session: int, round: int) -> float:
    return float(stream(seed, "trace", digest, "warm", session, round).random())
