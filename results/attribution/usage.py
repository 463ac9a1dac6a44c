"""One normal form for what providers report about the prompt cache (ATTRIBUTION A6, MEASUREMENT C41).

``prompt_total`` includes what was read from the cache and what was written to it. Absent is None,
never 0: an endpoint that says nothing about its cache has not missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]
_ALL = "*"
"""In a path: every value of a mapping or a list."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompt tokens of one request; None = not reported."""

    prompt_total: int | None
    cache_read: int | None
    cache_write: int | None

    @property
    def uncached(self) -> int | None:
        if self.prompt_total is None or self.cache_read is None:
            return None
        return self.prompt_total - self.cache_read


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where one family of providers puts its counters, as paths into the response body.

    The prompt total is the sum of ``total``; parts in ``outside`` are added where they are reported. Where
    a part of ``total`` is missing, ``instead`` is the total. ``known_by`` is a key that only this dialect
    has.
    """

    name: str
    known_by: Path
    total: tuple[Path, ...]
    read: tuple[Path, ...]
    """The first path that is present."""
    write: tuple[Path, ...] = ()
    outside: tuple[tuple[Path, ...], ...] = ()
    """Of each the first path that is present."""
    instead: Path = ()


def _usage(*keys: str) -> Path:
    return ("usage", *keys)


_PROMPT = _usage("prompt_tokens")
_OPENAI_READ = _usage("prompt_tokens_details", "cached_tokens")
_ANTHROPIC_WRITE = (_usage("cache_creation_input_tokens"), _usage("cache_creation", _ALL))
_BEDROCK_WRITE = (_usage("cacheWriteInputTokens"), _usage("cacheDetails", _ALL, "inputTokens"))

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "deepseek",
        known_by=_usage("prompt_cache_hit_tokens"),
        total=(_usage("prompt_cache_hit_tokens"), _usage("prompt_cache_miss_tokens")),
        read=(_usage("prompt_cache_hit_tokens"),),
        instead=_PROMPT,
    ),
    Dialect(
        "headrace",  # also newer vLLM builds: the OpenAI field, and what stays in the cache at the end
        known_by=_usage("prompt_tokens_details", "created_cache_tokens"),
        total=(_PROMPT,),
        read=(_OPENAI_READ,),
        write=(_usage("prompt_tokens_details", "created_cache_tokens"),),
    ),
    Dialect(
        "headrace",
        known_by=_usage("created_cache_tokens"),
        total=(_PROMPT,),
        read=(_OPENAI_READ,),
        write=(_usage("created_cache_tokens"),),
    ),
    Dialect(
        "llama.cpp",
        known_by=("timings", "prompt_n"),
        total=(("timings", "cache_n"), ("timings", "prompt_n")),
        read=(("timings", "cache_n"), _OPENAI_READ),
        instead=_PROMPT,  # of builds that count in prompt_n only what was not cached, and don't say the rest
    ),
    Dialect(
        "openai_chat",  # vLLM, SGLang, xAI, Mistral, Gemini, TensorRT-LLM, Dynamo and most gateways too
        known_by=_PROMPT,
        total=(_PROMPT,),
        read=(
            _OPENAI_READ,
            _usage("cached_tokens"),
            _usage("num_prefix_cache_hit_tokens"),
            _usage("cached_prompt_text_tokens"),
            _usage("cache_read_input_tokens"),
        ),
        write=(
            _usage("prompt_tokens_details", "cache_write_tokens"),
            _usage("prompt_tokens_details", "cache_creation_tokens"),
            _usage("cache_creation_input_tokens"),
        ),
    ),
    Dialect(
        "openai_responses",
        known_by=_usage("input_tokens_details"),
        total=(_usage("input_tokens"),),
        read=(_usage("input_tokens_details", "cached_tokens"),),
        write=(
            _usage("input_tokens_details", "cache_write_tokens"),
            _usage("input_tokens_details", "cache_write_tokens_details", _ALL),
        ),
    ),
    Dialect(
        "anthropic",
        known_by=_usage("input_tokens"),
        total=(_usage("input_tokens"),),
        read=(_usage("cache_read_input_tokens"),),
        write=_ANTHROPIC_WRITE,
        outside=((_usage("cache_read_input_tokens"),), _ANTHROPIC_WRITE),
    ),
    Dialect(
        "bedrock_converse",
        known_by=_usage("inputTokens"),
        total=(_usage("inputTokens"),),
        read=(_usage("cacheReadInputTokens"),),
        write=_BEDROCK_WRITE,
        outside=((_usage("cacheReadInputTokens"),), _BEDROCK_WRITE),
    ),
    Dialect(
        "gemini",
        known_by=("usageMetadata", "promptTokenCount"),
        total=(("usageMetadata", "promptTokenCount"),),
        read=(
            ("usageMetadata", "cachedContentTokenCount"),
            ("usageMetadata", "cacheTokensDetails", _ALL, "tokenCount"),
        ),
    ),
    Dialect(
        "gemini_interactions",
        known_by=_usage("total_input_tokens"),
        total=(_usage("total_input_tokens"),),
        read=(_usage("total_cached_tokens"),),
    ),
    Dialect(
        "sglang_native",
        known_by=("meta_info", "prompt_tokens"),
        total=(("meta_info", "prompt_tokens"),),
        read=(("meta_info", "cached_tokens"),),
    ),
    Dialect(
        "otel",
        known_by=_usage("gen_ai.usage.input_tokens"),
        total=(_usage("gen_ai.usage.input_tokens"),),
        read=(_usage("gen_ai.usage.cache_read.input_tokens"),),
        write=(_usage("gen_ai.usage.cache_creation.input_tokens"),),
    ),
)
"""In the order in which they are tried: the more particular shape first."""

_ENVELOPES = ("usage", "usageMetadata", "meta_info")
_GENERATED = ("completion_tokens", "output_tokens")
_REASONING = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens",),
)
MOST = 2**32 - 1
"""Tokens; what is more than that is no count."""


def normalise(body: Mapping[str, Any]) -> Usage:
    """The counters of a response body (or of its last event), by the first dialect that knows it.

    A body without ``usage`` that looks like a bare usage block is read as one.
    """
    if not any(key in body for key in _ENVELOPES):
        body = {"usage": body, **({"timings": body["timings"]} if "timings" in body else {})}
    for dialect in DIALECTS:
        known = _at(body, dialect.known_by)
        if known is not None and (type(known) in (int, float) or isinstance(known, Mapping)):
            return _read(body, dialect)
    return Usage(None, None, None)


def generated(usage: Mapping[str, Any] | None) -> int | None:
    """Output tokens by a usage block, those of reasoning inside (MEASUREMENT C9).

    xAI and Gemini count reasoning apart; what they count shows in the total: it is the sum of all three.
    """
    if usage is None:
        return None
    count = next((n for key in _GENERATED if (n := _count(usage, (key,))) is not None), None)
    apart, total = reasoning(usage), _count(usage, ("total_tokens",))
    if count is None or not apart or total is None:
        return count
    prompt = normalise({"usage": usage}).prompt_total
    return count + apart if prompt is not None and total == prompt + count + apart else count


def reasoning(usage: Mapping[str, Any]) -> int | None:
    """Reasoning tokens by a usage block."""
    return _first(usage, _REASONING)


def _read(body: Mapping[str, Any], dialect: Dialect) -> Usage:
    total, read = _prompt_total(body, dialect), _first(body, dialect.read)
    if total is not None and read is not None and read > total:
        read = None  # counters that contradict each other measure nothing
    return Usage(prompt_total=total, cache_read=read, cache_write=_first(body, dialect.write))


def _prompt_total(body: Mapping[str, Any], dialect: Dialect) -> int | None:
    parts = [_count(body, path) for path in dialect.total]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        whole = _count(body, dialect.instead) if dialect.instead else None
        return whole if whole is not None else sum(known) if known else None
    return sum(known) + sum(_first(body, paths) or 0 for paths in dialect.outside)


def _first(body: Mapping[str, Any], paths: Iterable[Path]) -> int | None:
    return next((count for path in paths if (count := _count(body, path)) is not None), None)


def _count(body: Mapping[str, Any], path: Path) -> int | None:
    """A count at ``path``; None for what is absent or no count: text, a fraction, a negative number. Of a
    path through `_ALL` the sum over all that count."""
    if _ALL in path:
        at = path.index(_ALL)
        found = _at(body, path[:at])
        parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else ()
        counts = [count for part in parts if (count := _count({"": part}, ("", *path[at + 1 :]))) is not None]
        return sum(counts) if counts else None
    value = _at(body, path)
    return int(value) if is_count(value) else None


def is_count(value: object) -> bool:
    """Whole and not negative. JSON knows no integers: some gateways write 12 as 12.0."""
    if type(value) is float:
        return value.is_integer() and 0 <= value <= MOST
    return type(value) is int and 0 <= value <= MOST


def _at(body: Any, path: Path) -> Any:
    for key in path:
        if body is None or (type(body) is not dict and not isinstance(body, Mapping)):  # cheap things first
            return None
        body = body.get(key)
    return body


def hit_names(usages: Iterable[Usage]) -> dict[str, float | None]:
    """Three of the hit names of C41, and how many requests said anything (``cache_report_coverage``).

    Requests that report no counter are in no denominator but coverage's; an empty one gives None.
    """
    everyone = list(usages)
    known = [(u.cache_read, u.prompt_total) for u in everyone if u.cache_read is not None and u.prompt_total]
    read, total = sum(r for r, _ in known), sum(t for _, t in known)
    return {
        "hit_token_weighted": read / total if total else None,
        "hit_request_mean": sum(r / t for r, t in known) / len(known) if known else None,
        "hit_request_count": sum(r > 0 for r, _ in known) / len(known) if known else None,
        "cache_report_coverage": len(known) / len(everyone) if everyone else None,
    }
