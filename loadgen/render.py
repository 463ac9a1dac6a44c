"""From a planned shot to the bytes that are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.plan import Shot
from loadgen.targets.base import Dialect
from loadgen.text import Message, Prompter
from loadgen.transport import HttpRequest


@dataclass(frozen=True, slots=True)
class Rendered:
    request: HttpRequest
    messages: list[Message]
    streamed: bool


@dataclass(frozen=True, slots=True)
class Renderer:
    """``tag`` makes request ids unique among the runs against one target; classes in ``whole`` ask for
    their answer in one piece instead of a stream."""

    prompter: Prompter
    dialect: Dialect
    tag: str = "run"
    whole: frozenset[str] = frozenset()

    def render(self, shot: Shot, answers: Mapping[int, str], attempt: int = 1) -> Rendered:
        """``answers``: the live answers that the prompt names, by shot id."""
        messages = self.prompter.messages(shot, answers)
        streamed = shot.class_ not in self.whole
        return Rendered(
            self.dialect.request(shot, messages, self.request_id(shot.id, attempt), streamed),
            messages,
            streamed,
        )

    def request_id(self, shot: int, attempt: int = 1) -> str:
        """The X-Request-Id of a shot: joins records with the truth (JOINTS 4). Each attempt has its own."""
        return f"{self.tag}-{shot}" if attempt == 1 else f"{self.tag}-{shot}.{attempt}"
