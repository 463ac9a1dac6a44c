"""One normal form for what providers report about the prompt cache (ATTRIBUTION A6, MEASUREMENT C41).

``prompt_total`` includes what was read from the cache and what was written to it. Absent is None,
never 0: an endpoint that says nothing about its cache has not missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


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

    ``total`` lists the paths that are added up to the prompt total; a missing one counts as 0 unless
    all are missing. ``known_by`` is a key that only this dialect has.
    """

    name: str
    known_by: Path
    total: tuple[Path, ...]
    read: tuple[Path, ...]
    """The first path that is present."""
    write: tuple[Path, ...] = ()


def _usage(*keys: str) -> Path:
    return ("usage", *keys)


_OPENAI_READ = _usage("prompt_tokens_details", "cached_tokens")

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "deepseek",
        known_by=_usage("prompt_cache_hit_tokens"),
        total=(_usage("prompt_cache_hit_tokens"), _usage("prompt_cache_miss_tokens")),
        read=(_usage("prompt_cache_hit_tokens"),),
    ),
    Dialect(
        "headrace",  # also newer vLLM builds: the OpenAI field, and what stays in the cache at the end
        known_by=_usage("prompt_tokens_details", "created_cache_tokens"),
        total=(_usage("prompt_tokens"),),
        read=(_OPENAI_READ,),
        write=(_usage("prompt_tokens_details", "created_cache_tokens"),),
    ),
    Dialect(
        "headrace",
        known_by=_usage("created_cache_tokens"),
        total=(_usage("prompt_tokens"),),
        read=(_OPENAI_READ,),
        write=(_usage("created_cache_tokens"),),
    ),
    Dialect(
        "llama.cpp",
        known_by=("timings", "prompt_n"),
        total=(("timings", "cache_n"), ("timings", "prompt_n")),
        read=(("timings", "cache_n"), _OPENAI_READ),
    ),
    Dialect(
        "openai_chat",  # vLLM, SGLang, xAI, Mistral, TensorRT-LLM, Dynamo and most gateways too
        known_by=_usage("prompt_tokens"),
        total=(_usage("prompt_tokens"),),
        read=(_OPENAI_READ, _usage("cached_tokens"), _usage("num_prefix_cache_hit_tokens")),
        write=(_usage("prompt_tokens_details", "cache_write_tokens"),),
    ),
    Dialect(
        "openai_responses",
        known_by=_usage("input_tokens_details"),
        total=(_usage("input_tokens"),),
        read=(_usage("input_tokens_details", "cached_tokens"),),
        write=(_usage("input_tokens_details", "cache_write_tokens"),),
    ),
    Dialect(
        "anthropic",
        known_by=_usage("input_tokens"),
        total=(
            _usage("input_tokens"),
            _usage("cache_read_input_tokens"),
            _usage("cache_creation_input_tokens"),
        ),
        read=(_usage("cache_read_input_tokens"),),
        write=(_usage("cache_creation_input_tokens"),),
    ),
    Dialect(
        "bedrock_converse",
        known_by=_usage("inputTokens"),
        total=(_usage("inputTokens"), _usage("cacheReadInputTokens"), _usage("cacheWriteInputTokens")),
        read=(_usage("cacheReadInputTokens"),),
        write=(_usage("cacheWriteInputTokens"),),
    ),
    Dialect(
        "gemini",
        known_by=("usageMetadata", "promptTokenCount"),
        total=(("usageMetadata", "promptTokenCount"),),
        read=(("usageMetadata", "cachedContentTokenCount"),),
    ),
)
"""In the order in which they are tried: the more particular shape first."""


def normalise(body: Mapping[str, Any]) -> Usage:
    """The counters of a response body (or of its last event), by the first dialect that knows it.

    A body without ``usage`` that looks like a bare usage block is read as one.
    """
    if "usage" not in body and "usageMetadata" not in body:
        body = {"usage": body, **({"timings": body["timings"]} if "timings" in body else {})}
    for dialect in DIALECTS:
        if _at(body, dialect.known_by) is not None:
            return _read(body, dialect)
    return Usage(None, None, None)


def _read(body: Mapping[str, Any], dialect: Dialect) -> Usage:
    parts = [count for path in dialect.total if (count := _count(body, path)) is not None]
    return Usage(
        prompt_total=sum(parts) if parts else None,
        cache_read=_first(body, dialect.read),
        cache_write=_first(body, dialect.write),
    )


def _first(body: Mapping[str, Any], paths: Iterable[Path]) -> int | None:
    return next((count for path in paths if (count := _count(body, path)) is not None), None)


def _count(body: Mapping[str, Any], path: Path) -> int | None:
    value = _at(body, path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _at(body: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(body, Mapping):
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
