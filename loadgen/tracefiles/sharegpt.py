"""ShareGPT: conversations of people with a model, with texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadgen.recorded import estimated_tokens
from loadgen.tracefiles.documents import Document, any_shape
from loadgen.tracefiles.errors import Findings, Say, under
from loadgen.tracefiles.fields import Field, anything, either, take, words
from loadgen.tracefiles.files import sources
from loadgen.tracefiles.recording import Recording, Session
from loadgen.tracefiles.texts import ESTIMATED, Conversation, Role, Texts, conversation

_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
_RECORD = {
    "conversations": Field(anything),
    **{key: Field(anything, must=False) for key in ("id", "model", "lang", "source", "system")},
}
_TURN = {
    "from": Field(either(*_ROLES)),
    "value": Field(words),
    **{key: Field(anything, must=False) for key in ("markdown", "text")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGPT(Texts):
    """ShareGPT JSON: `conversations` of human and gpt turns, with their texts; each gpt turn is one request
    that asks for as many tokens as it has. Recorded answers are the history, or live ones. Lengths are
    estimates."""

    history: Literal["recorded", "live"] = "recorded"

    def reading(self) -> tuple[Any, ...]:
        return (self.think, self.history)

    def read(self, path: Path) -> Recording:
        found = Findings()
        counts: Counter[str] = Counter()
        sessions: list[Session] = []
        files: list[str] = []
        digest = ""
        for source in sources(path, found):
            for document in any_shape(source):
                made = conversation(source.path, document, self.think_ns)
                if _read(made, document, source.say(document.line), counts, live=self.history == "live"):
                    sessions.append(tuple(made.requests))
                    files.append(str(source.path))
            digest = source.chained(digest)
        found.refuse()
        if not sessions:
            raise ValueError(f"{path}: no conversation in it has a question and its answer")
        facts = {
            "rows": sum(len(session) for session in sessions),
            "history": self.history,
            "lengths": ESTIMATED,
            **counts,
        }
        return Recording(str(path), digest, sessions, None, facts, files=files)


def _read(made: Conversation, document: Document, say: Say, counts: Counter[str], *, live: bool) -> bool:
    """Whether anything of the conversation can be sent; what cannot be is counted."""
    record = take(document.value, _RECORD, say)
    if record is None:
        return False
    if not isinstance(record["conversations"], list):
        say("conversations: expected a list of turns")
        return False
    for k, entry in enumerate(record["conversations"]):
        if not isinstance(entry, dict):
            say(f"conversations[{k}]: expected an object {{..}}")
            continue
        turn = take(entry, _TURN, under(say, f"conversations[{k}]"))
        if turn is not None:
            _turn(made, k, _ROLES[turn["from"]], turn["value"], counts, live=live)
    counts["conversations_without_answer"] += not made.requests
    return bool(made.requests)


def _turn(made: Conversation, k: int, role: Role, text: str, counts: Counter[str], *, live: bool) -> None:
    if not text.strip():
        counts["empty_texts"] += 1
    elif role != "assistant":
        made.heard(role, k, text)
    elif not made.history or made.history[-1].role != "user":
        counts["answers_without_question"] += 1
    else:
        made.asked(estimated_tokens(text))
        if live:
            made.answered(estimated_tokens(text))
        else:
            made.heard("assistant", k, text)
