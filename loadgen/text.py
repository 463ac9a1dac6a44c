"""Prompt text of an asked length, made again from a key whenever it is needed.

Lengths are in units of the target's tokenizer: ``word`` for the usual byte-pair vocabularies, where a
common word with the space before it is one token, or ``byte`` for tokenizers that read bytes. The
served length is the one that counts; it is reported beside the asked one (MEASUREMENT C10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from loadgen.plan import Part, Shot
from loadgen.streams import stream
from loadgen.words import WORDS

Unit = Literal["word", "byte"]
Message = dict[str, Any]
"""``role`` and ``content``; beside them ``tool_calls`` or ``tool_call_id``, in the words of OpenAI chat."""

CLOCK_ZERO = datetime(2026, 3, 4, 9, 15, 2)
"""What a slipped clock shows at t0. Not the real time: a plan must give the same text twice."""

NONCE_UNITS: dict[Unit, int] = {"word": 4, "byte": 12}
"""Units of a cold run's nonce: inside the first block of 16 tokens (MEASUREMENT C22)."""


def clock_text(seconds: float) -> str:
    return (CLOCK_ZERO + timedelta(seconds=int(seconds))).isoformat()


@lru_cache(maxsize=256)
def _words(key: str, count: int) -> tuple[str, ...]:
    drawn = stream(0, "text", key).integers(len(WORDS), size=count)
    return tuple(WORDS[i] for i in drawn)


@dataclass(frozen=True, slots=True)
class TextMaker:
    """Text of exactly n units from a key; equal key and n give equal text."""

    unit: Unit = "word"

    def text(self, key: str, n: int, stamp: float | None = None, stamp_at: int = 0, nonce: str = "") -> str:
        """``stamp`` (s on the run's clock) stands at unit ``stamp_at`` in place of what would be there.
        ``nonce`` is the key of the units that replace the first few."""
        if self.unit == "word":
            return self._by_words(key, n, stamp, stamp_at, nonce)
        return self._by_bytes(key, n, stamp, stamp_at, nonce)

    def _by_words(self, key: str, n: int, stamp: float | None, stamp_at: int, nonce: str) -> str:
        words = list(_words(key, n))
        if nonce:
            head = _words(nonce, NONCE_UNITS["word"])[:n]
            words[: len(head)] = head
        if stamp is not None:
            words[stamp_at : stamp_at + 1] = [clock_text(stamp)]
        return " ".join(words)

    def _by_bytes(self, key: str, n: int, stamp: float | None, stamp_at: int, nonce: str) -> str:
        # A word and its space take four characters or more.
        text = " ".join(_words(key, n // 3 + 1))[:n].ljust(n, ".")
        if nonce:
            head = " ".join(_words(nonce, NONCE_UNITS["byte"]))[: NONCE_UNITS["byte"]]
            text = (head + text[len(head) :])[:n]
        if stamp is not None:
            clock = clock_text(stamp)
            text = (text[:stamp_at] + clock + text[stamp_at + len(clock) :])[:n]
        return text


@dataclass(frozen=True, slots=True)
class Prompter:
    """Turns shots into chat messages.

    ``nonce`` is the run's (cold cache), None where the cache may be warm. It never is part of the plan:
    two runs of one plan are cold to each other. Warm-up and window have nonces of their own; all shots
    of a session are planned with the phase that it opens in, so it keeps the one it began with.
    """

    maker: TextMaker
    nonce: str | None = None

    def messages(self, shot: Shot, answers: Mapping[int, str]) -> list[Message]:
        """``answers`` has the live answer of every shot that the prompt names."""
        return [self._message(shot, k, part, answers) for k, part in enumerate(shot.prompt)]

    def _message(self, shot: Shot, k: int, part: Part, answers: Mapping[int, str]) -> Message:
        if part.answer_of is not None:
            return {"role": part.role, "content": answers[part.answer_of]}
        nonce = f"{self.nonce}/{shot.phase}" if k == 0 and self.nonce is not None else ""
        text = self.maker.text(part.text_key, part.tokens, part.stamp, part.stamp_at, nonce)
        return {"role": part.role, "content": text}
