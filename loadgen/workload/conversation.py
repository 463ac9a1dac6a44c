"""How a session grows, request by request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadgen.plan import Opening, Part, Turn
from loadgen.workload.agents import Subagents, steps
from loadgen.workload.lengths import drawn, once
from loadgen.workload.waits import wait_s

if TYPE_CHECKING:
    from loadgen.workload.sessions import Sessions


@dataclass(slots=True)
class Thread:
    """One line of a session: its trunk, a branch, or a sub-agent."""

    system: tuple[Part, ...]
    history: tuple[Part, ...] = ()
    """All that was said, the answer to the last request aside."""
    last: int | None = None
    """Index of its last request: the one whose answer the next prompt begins with."""
    after: int | None = None
    """Index of the request whose end the next one waits for: the last one, or a sub-agent's last."""
    branch: int = 0
    lineage: int = 0
    turn: int = 0
    elapsed: float = 0.0
    """s: the earliest that the last request can be due, after the session's beginning."""

    def copy(self, branch: int) -> Thread:
        return replace(self, branch=branch)


class Conversation:
    """The requests of one session, in the order in which they are made."""

    def __init__(self, of: Sessions, opening: Opening) -> None:
        self.made: list[Turn] = []
        self._of = of
        self._at = opening
        self._lineages = 0

    def system(self) -> tuple[Part, ...]:
        """The system prompt, if there is one."""
        key = f"{self._at.key}/s"
        if self._of.shared_system:
            tokens = once(self._of.system, "system", self._at.key)
        else:
            key, tokens = f"{key}{self._at.index}", drawn(self._of.system, self._at)
        return (Part("system", tokens, key),) if tokens else ()

    def turn(self, thread: Thread, turn: int) -> bool:
        """All requests of one turn; False if the context is full."""
        todo = steps(self._of.tools, self._of.subagents, self._at)
        place = f"{turn}.b{thread.branch}" if thread.branch else str(turn)
        part = Part("user", drawn(self._of.user, self._at), self._key("u", place))
        think = self._think() if thread.last is not None else 0.0
        thread.turn = turn
        going = self._ask(thread, part, think, self._output(bool(todo)))
        for k, step in enumerate(todo):
            act = self._send if step == "send" else self._call
            going = going and act(thread, k + 1 < len(todo))
        return going

    def _think(self) -> float:
        idle = self._of.idle
        away = idle is not None and self._at.rng.random() < idle.share
        return wait_s(idle.gap if idle is not None and away else self._of.think, self._at)

    def _output(self, calling: bool) -> int:
        tools = self._of.tools
        short = tools.output if tools is not None and calling else None
        return drawn(self._of.output if short is None else short, self._at)

    def _call(self, thread: Thread, more: bool) -> bool:
        """The last answer was a tool call; the next request brings the result."""
        tools = self._of.tools
        assert tools is not None, "only then are there calls"
        part = Part("tool", drawn(tools.result, self._at), self._key("t", len(self.made)))
        return self._ask(thread, part, wait_s(tools.think, self._at), self._output(more))

    def _send(self, thread: Thread, more: bool) -> bool:
        """The last answer sent a sub-agent; when that is done, the next request brings its report."""
        sub = self._of.subagents
        assert sub is not None, "only then are any sent"
        thread.after = self._delegate(sub, thread)
        part = Part("tool", drawn(sub.report, self._at), self._key("t", len(self.made)))
        return self._ask(thread, part, 0.0, self._output(more))

    def _delegate(self, sub: Subagents, thread: Thread) -> int | None:
        """All requests of a sub-agent; the index of its last one."""
        self._lineages += 1
        tokens = once(sub.system, "subagents", self._at.key)
        system = (Part("system", tokens, f"{self._at.key}/sub"),) if tokens else ()
        child = Thread(system, after=thread.last, branch=thread.branch, lineage=self._lineages)
        task = Part("user", drawn(sub.task, self._at), self._key("k", len(self.made)))
        going = self._ask(child, task, 0.0, drawn(sub.output, self._at))
        for _ in range(drawn(sub.turns, self._at) - 1):
            part = Part("tool", drawn(sub.step, self._at), self._key("t", len(self.made)))
            wait, output = wait_s(sub.think, self._at), drawn(sub.output, self._at)
            going = going and self._ask(child, part, wait, output)
        return child.last

    def _key(self, kind: str, place: int | str) -> str:
        return f"{self._at.key}/{kind}{self._at.index}.{place}"

    def _ask(self, thread: Thread, part: Part, wait: float, output: int) -> bool:
        """Add a request that ends with ``part``, ``wait`` s after what it waits for; False if it would
        pass the context."""
        said = (*thread.history, *self._answer(thread, part.role == "tool"), part)
        history = self._compacted(thread, said)
        tokens = _tokens(thread.system) + _tokens(history)
        if self._of.context is not None and tokens + output > self._of.context:
            return False
        if thread.last is not None:
            # A later request has no due time yet; a clock in it shows the earliest one, and a new second.
            thread.elapsed += max(1.0, wait)
        place = len(self.made)
        after_ns = round(wait * 1e9) if place else None
        prompt = (*self._slipped(thread), *history)
        self.made.append(Turn(prompt, output, after_ns, thread.after, thread.branch, thread.lineage))
        thread.history, thread.last, thread.after = history, place, place
        return True

    def _answer(self, thread: Thread, call: bool) -> tuple[Part, ...]:
        """The answer to the last request, as the next one has it."""
        if thread.last is None:
            return ()
        tokens = self.made[thread.last].n_out
        if self._of.history == "live":
            return (Part("assistant", tokens, answer_of=self._at.first_id + thread.last, call=call),)
        return (Part("assistant", tokens, self._key("a", thread.last), call=call),)

    def _compacted(self, thread: Thread, said: tuple[Part, ...]) -> tuple[Part, ...]:
        compaction = self._of.compaction
        if compaction is None or thread.lineage or _tokens(thread.system) + _tokens(said) <= compaction.at:
            return said
        last = max((k for k, part in enumerate(said) if part.role == "assistant"), default=0)
        tokens = drawn(compaction.summary, self._at)
        if _tokens(said[:last]) <= tokens:
            return said
        return (Part("user", tokens, self._key("c", len(self.made))), *said[last:])

    def _slipped(self, thread: Thread) -> tuple[Part, ...]:
        slip, at_s = self._of.slip, self._at.due_ns / 1e9 + thread.elapsed
        if slip is None or thread.lineage or not slip.holds(thread.turn, at_s):
            return thread.system
        return tuple(replace(part, stamp=at_s, stamp_at=slip.at_token) for part in thread.system)


def _tokens(parts: tuple[Part, ...]) -> int:
    return sum(part.tokens for part in parts)
