"""Token ids to text deltas: whole characters only (ENGINE E37), stop strings cut out (E38).

Everything goes token by token inside, so deltas depend on how the ids came in batches only by where
they are cut, never in what they concatenate to:

    ids -> Detokenizer -> text -> StopStrings -> text that may be shown
                          |................held back: a character or a stop not yet complete
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_WINDOW = 8
"""Tokens of context kept in front of new ones, for tokenizers that join words by what stands before."""


class Detokenizer:
    """Text of a growing list of ids. What it has returned never changes.

    The last character is held back while it is U+FFFD, for it may be a character not yet complete; only
    the last can be, so at most one is held.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the window only
        self._mark = 0  # start of the next window: nothing is held at this index
        self._sent = 0  # characters of the window's text already returned

    def push(self, token: int) -> str:
        """The text that this token completes, often one word, sometimes empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = text.removesuffix(_REPLACEMENT)
        delta = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        if len(whole) == len(text) and len(self._ids) - self._mark >= _WINDOW:
            self._ids = self._ids[self._mark :]
            self._mark = len(self._ids)
            self._sent = len(self._tokenizer.decode(self._ids))
        return delta

    def flush(self) -> str:
        """What was held: the ids ended inside a character."""
        text = self._tokenizer.decode(self._ids)
        delta, self._sent = text[self._sent :], len(text)
        return delta


class StopStrings:
    """Finds the stop string that is completed first; among those completed by the same character, the
    longest. Holds back only while the tail is a proper prefix of a stop."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be shown now. Once ``stopped`` it is empty."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The held text: the output ended without completing a stop."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to show and the ids it came from; ids without text of their own come with the next text."""

    text: str
    ids: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.text or self.ids)


class OutputText:
    """The output of one request: ids in, deltas out, and how many ids the shown text counts as."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._ids: list[int] = []
        self._ends: list[int] = []  # characters of detokenised text after each id
        self._shown = 0  # characters returned
        self._released = 0  # ids returned

    @property
    def stopped(self) -> bool:
        """A stop string is complete: later ids are ignored, the request may be ended."""
        return self._stops.stopped

    @property
    def generated(self) -> int:
        """Output tokens as usage counts them: those returned."""
        return self._released

    def offset(self, index: int) -> int:
        """Characters of output before id ``index``."""
        return self._ends[index - 1] if index else 0

    def push(self, ids: Sequence[int]) -> Delta:
        """Take new ids in order."""
        first, text = self._released, ""
        for token in ids:
            if self.stopped:
                break
            self._ids.append(token)
            text += self._take(self._detokenizer.push(token))
        return Delta(text, tuple(self._ids[first : self._released]))

    def finish(self) -> Delta:
        """The end without a stop string: whatever was held (E38: flushed at finish)."""
        if self.stopped:
            return Delta("", ())
        first = self._released
        text = self._stops.push(self._detokenizer.flush())
        if not self.stopped:
            text += self._stops.flush()
        self._shown += len(text)
        self._released = len(self._ids)
        return Delta(text, tuple(self._ids[first:]))

    def _take(self, text: str) -> str:
        self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
        shown = self._stops.push(text)
        self._shown += len(shown)
        if self._shown:
            # As few ids as the shown text needs; one whose text is shown in part was needed for it.
            self._released = bisect_left(self._ends, self._shown) + 1
        return shown
