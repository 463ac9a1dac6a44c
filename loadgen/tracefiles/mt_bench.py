"""MT-bench: short questions, some with a second one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.tracefiles.documents import per_line
from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.fields import Field, anything, shown, take, words
from loadgen.tracefiles.reading import Source
from loadgen.tracefiles.recording import Recording, Session
from loadgen.tracefiles.texts import ESTIMATED, Texts, conversation
from loadgen.workload.lengths import lengths


def _turns(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{shown(value)} is not a list of questions")
    if not all(words(question).strip() for question in value):
        raise ValueError("a question without words")
    return value


_SPEC = {
    "turns": Field(_turns),
    **{key: Field(anything, must=False) for key in ("question_id", "category", "reference")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MTBench(Texts):
    """MT-bench JSONL: `turns`, the questions of one conversation with their texts. Answers are not recorded:
    each request asks for `output` tokens, and live answers are the history. Lengths are estimates."""

    output: int

    def reading(self) -> tuple[Any, ...]:
        lengths(output=self.output)
        return (self.think, self.output)

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        sessions: list[Session] = []
        for document in per_line(source):
            row = take(document.value, _SPEC, source.say(document.line))
            if row is None:
                continue
            made = conversation(path, document, self.think_ns)
            for k, question in enumerate(row["turns"]):
                made.heard("user", k, question)
                made.asked(self.output)
                made.answered(self.output)
            sessions.append(tuple(made.requests))
        found.refuse()
        facts = {"rows": sum(len(one) for one in sessions), "history": "live", "lengths": ESTIMATED}
        return Recording(str(path), source.digest, sessions, None, facts)
