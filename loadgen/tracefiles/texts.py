"""What traces of recorded texts have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadgen.plan import Part, Seconds
from loadgen.recorded import estimated_tokens, key_of
from loadgen.tracefiles.base import Place, TraceFile, Untimed
from loadgen.tracefiles.documents import Document
from loadgen.tracefiles.recording import Request
from loadgen.tracefiles.replay import Rules

Role = Literal["system", "user", "assistant", "tool"]
ESTIMATED = "estimated: 4 bytes of UTF-8 are one token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(Untimed):
    """Conversations with their texts. A later turn comes `think` after the answer before it."""

    think: Seconds = 0.0

    def rules(self) -> Rules:
        if self.over == "cut" and self.max_input is not None:
            raise ValueError("a recorded text cannot be cut to max_input: say over: drop")
        return TraceFile.rules(self)

    def reading(self) -> tuple[Any, ...]:
        return (self.think,)

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        return request.parts

    @property
    def think_ns(self) -> int:
        return round(self.think * 1e9)


@dataclass(slots=True)
class Conversation:
    """One conversation while it is read: the history so far, and the requests made of it."""

    path: Path
    document: Document
    think_ns: int
    history: list[Part]
    requests: list[Request]

    def heard(self, role: Role, index: int, text: str, *, call: bool = False) -> None:
        """Text ``index`` of the object goes into the history."""
        key = key_of(self.path, self.document.offset, self.document.raw, index)
        self.history.append(Part(role, estimated_tokens(text), key, call=call))

    def asked(self, output: int) -> None:
        """All of the history is sent, ``output`` tokens are asked for."""
        k = len(self.requests)
        given = sum(part.tokens for part in self.history)
        think, parent = (self.think_ns, k - 1) if k else (None, None)
        self.requests.append(
            Request(self.document.line, given, output, think, parent, parts=tuple(self.history))
        )

    def answered(self, output: int) -> None:
        """The live answer to the last request goes into the history."""
        self.history.append(Part("assistant", output, answer_of=len(self.requests) - 1))


def conversation(path: Path, document: Document, think_ns: int) -> Conversation:
    return Conversation(path, document, think_ns, [], [])
