"""One of a request's choices on its way out: ids in, what may be shown of them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from engine.api.stream import OutputText
from engine.model.tokenizer import Tokenizer
from engine.request import Finish, Logprob


@dataclass(frozen=True, slots=True)
class Part:
    """New output of a choice: text and the ids that it took; where there are logprobs, that of each id and
    the characters of output before it."""

    text: str = ""
    ids: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


def joined(parts: Sequence[Part]) -> Part:
    """Parts in their order as one."""
    return Part(
        "".join(part.text for part in parts),
        tuple(chain.from_iterable(part.ids for part in parts)),
        tuple(chain.from_iterable(part.offsets for part in parts)),
        tuple(chain.from_iterable(part.logprobs for part in parts)),
    )


class Choice:
    """Output of one choice. ``reason`` is set once it has ended, ``closed`` once its end was shown."""

    def __init__(self, index: int, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.reason: Finish | None = None
        self.closed = False
        self.begun = False
        """Something of it was shown."""
        self._output = OutputText(tokenizer, stops)
        self._logprobs: list[Logprob] = []

    @property
    def generated(self) -> int:
        """Output tokens as usage counts them: cut with the text at a stop string (ENGINE E38)."""
        return self._output.generated

    def push(self, ids: Sequence[int], logprobs: Sequence[Logprob]) -> Part:
        """Take new ids in order; a stop string among them ends the choice."""
        first = self._output.generated
        self._logprobs += logprobs
        delta = self._output.push(ids)
        if self._output.stopped:
            self.reason = Finish.STOP
        return self._part(delta.text, delta.ids, first)

    def finish(self) -> Part:
        """No more ids come: what was held back."""
        first = self._output.generated
        delta = self._output.finish()
        if self._output.stopped:  # by the last, broken character
            self.reason = Finish.STOP
        return self._part(delta.text, delta.ids, first)

    def _part(self, text: str, ids: tuple[int, ...], first: int) -> Part:
        if not self._logprobs:
            return Part(text, ids)
        last = first + len(ids)
        offsets = tuple(self._output.offset(index) for index in range(first, last))
        return Part(text, ids, offsets, tuple(self._logprobs[first:last]))
