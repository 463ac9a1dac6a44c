"""Output that meets a JSON schema: which tokens may come next, by the llguidance library.

The gateway compiles a schema to refuse a bad one with 400; a worker compiles it again for its runner. What
a matcher knows is a function of the output tokens alone, so a state that does not fit (preempted, forked,
on another worker) is made anew from them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.model.schema_text import SchemaError, check_text
from engine.model.tokenizer import Tokenizer
from engine.request import Tokens

ANY_OBJECT = '{"type":"object"}'
"""The schema of JSON mode."""
MAX_VOCABULARY = 1 << 20
COMPILED = 64
"""Schemas kept compiled, the last used ones."""
STATES = 2048
"""Choices whose matcher is kept, the last used ones; any other is made anew from its tokens."""
MAX_ITEMS = 10_000
"""Items of the library's parser at one place of the output, about four for each property that may come next;
its own limit is 2,000, which 500 properties pass."""
MAX_STEP_ITEMS = 1_000_000
"""Items for one mask, 20,000 a millisecond; its own limit is 50,000. Of 2,000 properties and 49,152 tokens
a mask takes 12 ms."""
_OPTIONS: Any = {"whitespace_pattern": r"\x20|\x0A[\x20\x09]{0,16}", "lenient": False}
"""A blank, or a line end and indentation: a model that likes white space must not print it for ever."""

Mask = npt.NDArray[np.bool_]


class DeadEnd(Exception):
    """Nothing may come next, not even the end."""


class Schemas:
    """Schemas compiled for one tokenizer. Needs llguidance once it is used. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()

    def knows(self, schema: str) -> bool:
        """Whether ``check`` has nothing more to do."""
        return schema in self._compiled

    def check(self, schema: str) -> None:
        """Raises SchemaError for a schema that is too large, no schema, not supported, or that nothing
        can meet. At once if it is known; no other thread's compiling is waited for then."""
        if not self.knows(schema):
            with self._lock:
                self._compile(schema, trying=True)

    def matcher(self, schema: str) -> Any:
        """A new LLMatcher at the beginning. Raises SchemaError. A worker that asks for it loses no time with
        what the gateway's ``check`` has tried."""
        with self._lock:
            return self._compile(schema, trying=False).deep_copy()

    def mask(self, matcher: Any) -> Mask:
        """``[vocabulary]``: what may come next. Where the output may end, any end-of-sequence id may.
        Raises DeadEnd."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise DeadEnd(f"the output cannot go on within the schema: {_reason(matcher.get_error())}")
        mask = np.unpackbits(bits, bitorder="little")[: self._tokenizer.vocabulary].astype(np.bool_)
        ends = [token for token in self._tokenizer.eos_ids if token < len(mask)]
        mask[ends] = mask[ends].any()
        if not mask.any():
            raise DeadEnd("no token of this model continues the output within the schema")
        return mask

    def _compile(self, schema: str, trying: bool) -> Any:
        found = self._compiled.get(schema)
        if found is not None:
            self._compiled.move_to_end(schema)
            return found
        parts = check_text(schema)
        matcher = _compiled(self._ready(), schema)
        try:
            self._try(matcher, self.mask(matcher))
        except DeadEnd as end:
            raise SchemaError(f"nothing can meet this schema: {end}") from end
        for part in parts if trying else ():
            self._try_part(part)
        self._compiled[schema] = matcher
        if len(self._compiled) > COMPILED:
            self._compiled.popitem(last=False)
        return matcher

    def _try_part(self, part: str) -> None:
        """Raises SchemaError as ``_try``, but not for what is no schema, or not one by itself."""
        try:
            matcher = _compiled(self._ready(), part)
            mask = self.mask(matcher)
        except (SchemaError, DeadEnd):
            return
        self._try(matcher, mask)

    def _try(self, matcher: Any, mask: Mask) -> None:
        """Raises SchemaError if the library gives up at what may come after a brace: else it would only while
        generating."""
        brace = self._ready().greedy_tokenize("{")
        if not mask[brace].all():
            return
        ahead = matcher.deep_copy()
        if not ahead.consume_tokens(brace) or not ahead.compute_bitmask() or ahead.is_error():
            raise SchemaError(
                "too many properties (or combinations of allOf and anyOf) may come next in an object: "
                + _reason(ahead.get_error())
            )

    def _ready(self) -> Any:
        if self._backend is None:
            self._backend = _backend(self._tokenizer)
        return self._backend


class Matchers:
    """Where each constrained choice of a runner stands."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._states: OrderedDict[tuple[int, int, str], tuple[Any, Tokens[int]]] = OrderedDict()

    def allowed(self, id: int, choice: int, schema: str, output: Tokens[int]) -> Mask:
        """What may follow ``output``. Raises DeadEnd."""
        matcher, known = self._states.pop((id, choice, schema), (None, array("I")))
        if matcher is None or known != output[: len(known)]:
            try:
                matcher, known = self._schemas.matcher(schema), array("I")
            except SchemaError as error:
                raise DeadEnd(str(error)) from error
        if not matcher.consume_tokens(output[len(known) :].tolist()):
            raise DeadEnd(f"the output left the schema: {_reason(matcher.get_error())}")
        mask = self._schemas.mask(matcher)
        self._states[id, choice, schema] = matcher, output[:]
        if len(self._states) > STATES:
            self._states.popitem(last=False)
        return mask


def _compiled(backend: Any, schema: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    try:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
    except ValueError as error:
        raise SchemaError(_reason(str(error))) from error
    limits = LLParserLimits(max_items_in_row=MAX_ITEMS, step_max_items=MAX_STEP_ITEMS, verbose_errors=False)
    matcher = LLMatcher(backend, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise SchemaError(_reason(matcher.get_error()))
    return matcher


class _Pieces:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.tokens = [tokenizer.piece(token) for token in range(tokenizer.vocabulary)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _backend(tokenizer: Tokenizer) -> Any:
    """llguidance's own view of a tokenizer. Raises SchemaError where there can be none."""
    if tokenizer.vocabulary > MAX_VOCABULARY:
        size = f"a vocabulary of {tokenizer.vocabulary} tokens"
        raise SchemaError(f"this model has {size}, schemas take {MAX_VOCABULARY} at most")
    if not tokenizer.eos_ids:
        raise SchemaError("this model has no end-of-sequence token to end an output with")
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as error:
        raise SchemaError("schemas need llguidance: pip install 'headrace[engine]'") from error
    return LLTokenizer(TokenizerWrapper(_Pieces(tokenizer)))


def _reason(text: str) -> str:
    """First and last line of an error of the library: between them, it draws where in a pattern it is."""
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "<non-verbose/>")]
    ends = lines[:1] + [line.removeprefix("error: ") for line in lines[1:][-1:]]
    return " ".join(line[:300] for line in ends) or "no reason given"
