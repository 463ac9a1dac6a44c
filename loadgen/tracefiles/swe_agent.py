"""SWE-agent: transcripts of agents that use tools, with texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.recorded import estimated_tokens, message_text
from loadgen.tracefiles.documents import Document, any_shape
from loadgen.tracefiles.errors import Findings, Say, under
from loadgen.tracefiles.fields import Field, anything, either, shown, take, words
from loadgen.tracefiles.files import sources
from loadgen.tracefiles.recording import Recording, Session
from loadgen.tracefiles.texts import ESTIMATED, Conversation, Role, Texts, conversation

_BESIDE = ("environment", "trajectory", "info", "replay_config")
_RECORD = {"history": Field(anything), **{key: Field(anything, must=False) for key in _BESIDE}}


def _calls(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list of calls")
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ValueError(f"{shown(call)} is not a call {{function: {{name, arguments}}}}")
        words(function.get("name"))
        words(function.get("arguments"))
    return value


_MESSAGE = {
    "role": Field(either("system", "user", "assistant", "tool")),
    "content": Field(words),
    "tool_calls": Field(_calls, must=False),
    **{
        key: Field(anything, must=False)
        for key in ("agent", "message_type", "thought", "action", "tool_call_ids", "is_demo", "tags")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SWEAgent(Texts):
    """SWE-agent JSON, one transcript a file, or a folder of them: `history` of messages with their texts.
    Each message of the assistant is one request that sends all messages before it, recorded answers and
    results of tools among them, and asks for as many tokens as it has. Lengths are estimates."""

    def read(self, path: Path) -> Recording:
        found = Findings()
        sessions: list[Session] = []
        files: list[str] = []
        digest = ""
        for source in sources(path, found):
            for document in any_shape(source):
                made = conversation(source.path, document, self.think_ns)
                _read(made, document, source.say(document.line))
                sessions.append(tuple(made.requests))
                files.append(str(source.path))
            digest = source.chained(digest)
        found.refuse()
        facts = {"rows": sum(len(one) for one in sessions), "history": "recorded", "lengths": ESTIMATED}
        return Recording(str(path), digest, sessions, None, facts, files=files)


def _read(made: Conversation, document: Document, say: Say) -> None:
    record = take(document.value, _RECORD, say)
    if record is None:
        return
    if not isinstance(record["history"], list):
        say("history: expected a list of messages")
        return
    for k, entry in enumerate(record["history"]):
        _message(made, k, entry, under(say, f"history[{k}]"))
    if not made.requests:
        say("history: no message of the assistant after another one")


def _message(made: Conversation, k: int, entry: Any, say: Say) -> None:
    if not isinstance(entry, Mapping):
        say("expected an object {..}")
        return
    message = take(entry, _MESSAGE, say)
    if message is None:
        return
    role: Role = message["role"]
    text = message_text(message)
    if role == "assistant" and made.history:
        made.asked(estimated_tokens(text))
    made.heard(role, k, text, call=bool(message.get("tool_calls")))
