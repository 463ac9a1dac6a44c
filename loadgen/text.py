"""Prompt text of an asked length, made again from a key whenever it is needed.

Lengths are in units of the target's tokenizer: ``word`` for the usual byte-pair vocabularies, where a
common word with the space before it is one token, or ``byte`` for tokenizers that read bytes. The
served length is the one that counts; it is reported beside the asked one (MEASUREMENT C10). With the
target's own tokenizer (`loadgen.vocabulary`) they are equal but for what the chat template adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b, shake_128
from typing import Any, Literal

from loadgen.plan import Part, Shot
from loadgen.recorded import is_recorded, text_of
from loadgen.textcache import TextCache
from loadgen.vocabulary import USUAL, Vocabulary, vocabulary_of

Unit = Literal["word", "byte"]
Message = dict[str, Any]
"""``role`` and ``content``; beside them ``tool_calls`` or ``tool_call_id``, in the words of OpenAI chat."""

CLOCK_ZERO = datetime(2026, 3, 4, 9, 15, 2)
"""What a slipped clock shows at t0. Not the real time: a plan must give the same text twice."""

NONCE_BYTES = 12
"""Length of a cold run's nonce where units are bytes; else it has 4 words. Both lie inside the first block
of 16 tokens (MEASUREMENT C22)."""

TOOL = "lookup"
"""The name of the only tool that models are made to have called."""

GROUP = 1024
"""About as many units of neighbouring blocks are kept as one text."""


def clock_text(seconds: float) -> str:
    return (CLOCK_ZERO + timedelta(seconds=int(seconds))).isoformat()


@dataclass(frozen=True, slots=True)
class TextMaker:
    """Text of exactly n units from a key; equal key and n give equal text, and of two lengths the shorter
    text begins the longer one. Units are pieces of ``vocabulary``, or bytes."""

    unit: Unit = "word"
    vocabulary: Vocabulary = USUAL
    cache: TextCache = field(default_factory=TextCache, compare=False, repr=False)
    table: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.vocabulary.table)

    @staticmethod
    def made_for(unit: Unit, tokenizer: str | None) -> TextMaker:
        """``tokenizer`` is the path of the target's tokenizer.json. Raises ValueError if that does not do."""
        return TextMaker(unit) if tokenizer is None else TextMaker("word", vocabulary_of(tokenizer))

    @property
    def between(self) -> str:
        """What stands between two units."""
        return self.vocabulary.between if self.unit == "word" else ""

    def text(self, key: str, n: int, stamp: float | None = None, stamp_at: int = 0, nonce: str = "") -> str:
        """``stamp`` (s on the run's clock) stands at unit ``stamp_at`` in place of what would be there.
        ``nonce`` is the key of the units that replace the first few."""
        return self.dressed(self._known(key, n), n, stamp, stamp_at, nonce)

    def of(self, part: Part, nonce: str = "") -> str:
        """The text of a part that is no live answer."""
        if part.blocks:
            text = self.between.join(self._known(*piece) for piece in _pieces(part))
        elif is_recorded(part.text_key):
            text = text_of(part.text_key)
        else:
            text = self._known(part.text_key, part.tokens)
        return self.dressed(text, part.tokens, part.stamp, part.stamp_at, nonce)

    def dressed(self, text: str, n: int, stamp: float | None, stamp_at: int, nonce: str) -> str:
        """``text`` of n units with its nonce and its clock."""
        if nonce:
            size = min(n, NONCE_BYTES if self.unit == "byte" else self.vocabulary.nonce)
            text = self._put(text, n, 0, self._made(nonce, size), size)
        if stamp is not None:
            clock = clock_text(stamp)
            text = self._put(text, n, stamp_at, clock, self._units(clock))
        return text

    def _known(self, key: str, n: int, skip: int = 0) -> str:
        return self.cache.get((key, n, skip), partial(self._made, key, n, skip))

    def _made(self, key: str, n: int, skip: int = 0) -> str:
        """Units ``skip`` to ``skip + n`` of the endless text of ``key``."""
        end = skip + n
        if self.unit == "byte":
            # A word and the space after it take four characters or more.
            drawn = shake_128(key.encode()).digest(end // 4 + 1)
            return " ".join(map(self.table.__getitem__, drawn))[skip:end]
        return self.between.join(map(self.table.__getitem__, shake_128(key.encode()).digest(end)[skip:]))

    def _put(self, text: str, n: int, at: int, new: str, units: int) -> str:
        """``new`` in place of the ``units`` from unit ``at`` on, or of those at the end if it is nearer."""
        at = max(0, min(at, n - units))
        if not self.between:
            return text[:at] + new + text[at + units :]
        words = text.split(self.between, at + units)
        return self.between.join([*words[:at], new, *words[at + units :]])

    def _units(self, clock: str) -> int:
        if self.unit == "byte":
            return len(clock)
        return 1 if self.vocabulary.count is None else self.vocabulary.count(clock)


def _pieces(part: Part) -> Iterator[tuple[str, int, int]]:
    """(key, units, first unit) of the texts that its blocks are made of. Neighbours have one key, so that
    whole groups of them are made, and found again, at once. What no block reaches has a key of its own."""
    size, left, id = part.block_tokens, part.tokens, 0
    group = max(1, GROUP // size)
    for first, count in part.blocks:
        id, end = first, first + count
        while id < end and left > 0:
            number, place = divmod(id, group)
            blocks = min(group - place, end - id)
            units = min(left, blocks * size)
            yield f"{part.text_key}/b{number}", units, place * size
            id, left = id + blocks, left - units
    if left > 0:
        yield f"{part.text_key}/after{id}", left, 0


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
        made: list[Message] = []
        call = ""
        for k, part in enumerate(shot.prompt):
            message: Message = {"role": part.role, "content": self._content(shot, k, part, answers)}
            if part.call:
                call = _call_id(part)
                message["tool_calls"] = [_tool_call(call)]
            elif part.role == "tool":
                message["tool_call_id"] = call
            made.append(message)
        return made

    def _content(self, shot: Shot, k: int, part: Part, answers: Mapping[int, str]) -> str:
        if part.answer_of is not None:
            return answers[part.answer_of]
        nonce = f"{self.nonce}/{shot.phase}" if k == 0 and self.nonce is not None else ""
        return self.maker.of(part, nonce)


def _call_id(part: Part) -> str:
    """Of the tool call in ``part``: the same in every prompt that has it."""
    return f"call_{blake2b(f'{part.text_key}|{part.answer_of}'.encode(), digest_size=9).hexdigest()}"


def _tool_call(call: str) -> dict[str, Any]:
    """The call itself is the content's text; its form is what servers ask for."""
    return {"id": call, "type": "function", "function": {"name": TOOL, "arguments": "{}"}}
