"""What the reference server does: timing, failures, bytes. The dataclass is the schema of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loadgen.plan import Seconds, Share

DEFAULT_TOKENS = 50
"""Of an answer whose length neither the script nor the request gives."""
_MOST_TOKENS = 100_000

FailureKind = Literal["status", "in_band", "reset", "truncate", "silence"]


@dataclass(frozen=True, slots=True)
class Jitter:
    """Added to the first delay and to each gap, drawn anew for each; what would fall below 0 is 0.

    ``uniform`` is on [-scale, scale], ``normal`` has mean 0 and deviation scale, ``exponential`` has mean
    scale and only delays.
    """

    law: Literal["uniform", "normal", "exponential"]
    scale: Seconds


@dataclass(frozen=True, slots=True)
class Stall:
    """Token ``at`` (from 1) and all after it come later by ``for``."""

    at: int
    for_: Seconds

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ValueError(f"at is a token, counted from 1, not {self.at}")


@dataclass(frozen=True, slots=True)
class Failure:
    """What befalls a ``share`` of the requests, drawn from the seed in order of arrival.

    ``status`` answers with that HTTP status at once. The others come in place of token ``after`` + 1:
    ``in_band`` is an error event, ``reset`` a TCP reset, ``truncate`` a close without the end of the
    body, ``silence`` nothing at all until the client hangs up.
    """

    kind: FailureKind
    share: Share
    after: int = 0
    status: int = 503
    retry_after: Seconds | None = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"status is an HTTP error, 400 to 599, not {self.status}")
        if self.after < 0:
            raise ValueError(f"after counts tokens, from 0, not {self.after}")


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes of a stream. All of them say the same by the HTML and HTTP standards."""

    transfer: Literal["chunked", "length", "close"] = "chunked"
    """How the body ends: by chunks, by a Content-Length, or with the connection."""
    line_end: Literal["lf", "crlf", "cr"] = "lf"
    events_per_write: int = 1
    """Tokens wait for the last one of their write."""
    cuts: tuple[int, ...] = ()
    """Bytes at which each write is cut into several, from its start or, negative, from its end."""
    bytewise: bool = False
    """Each byte is a write of its own."""
    comments: bool = False
    """A comment before each event."""
    multiline: bool = False
    """The JSON of an event takes several data lines."""
    space: bool = True
    """After the colon of a field."""
    bom: bool = False
    head: Literal["at once", "with the first"] = "at once"
    """When the HTTP head is written: as the request was read, or with the first event."""

    def __post_init__(self) -> None:
        if self.events_per_write < 1:
            raise ValueError(f"events_per_write is at least 1, not {self.events_per_write}")


@dataclass(frozen=True, slots=True)
class Script:
    """Times count from the read of a request's last byte; a token is written at its time, never before."""

    ttft: Seconds = 0.05
    itl: Seconds = 0.01
    tokens: int | None = None
    """Of every answer, at most what the request asks for. None: as many as it asks for, else 50."""
    jitter: Jitter | None = None
    stalls: tuple[Stall, ...] = ()
    failures: tuple[Failure, ...] = ()
    framing: Framing = Framing()
    prelude: bool = False
    """An event with the role alone before the first token (chat)."""
    usage: Literal["asked", "always", "never"] = "asked"
    finish: bool = True
    """The last token comes with a finish reason."""
    done: bool = True
    """A stream ends with ``[DONE]``, where its API has that."""
    prompt_tokens: int | None = None
    """What usage says of the prompt. None: the number of spaces in the body, plus one."""
    cached_tokens: int | None = None
    """What usage says was cached of it. None: it says nothing of a cache."""
    model: str = "reference"
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.ttft), ("itl", self.itl)):
            if not 0 <= value <= 86_400:
                raise ValueError(f"{name} lies between 0 and a day, not {value} s")
        if self.tokens is not None and not 1 <= self.tokens <= _MOST_TOKENS:
            raise ValueError(f"tokens lies between 1 and {_MOST_TOKENS}, not {self.tokens}")
        for name in ("prompt_tokens", "cached_tokens", "seed"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is 0 or more, not {getattr(self, name)}")
        total = sum(failure.share for failure in self.failures)
        if total > 1 + 1e-9:
            raise ValueError(f"the shares of all failures make {total:.0%}: at most 100%")
        if self.prompt_tokens is not None and (self.cached_tokens or 0) > self.prompt_tokens:
            raise ValueError("cached_tokens are a part of prompt_tokens")

    def length(self, asked: int | None) -> int:
        """Tokens of the answer to a request for at most ``asked`` tokens."""
        most = min(_MOST_TOKENS, asked) if asked is not None else None
        if self.tokens is None:
            return most if most is not None else DEFAULT_TOKENS
        return self.tokens if most is None else min(self.tokens, most)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Script:
        """From ``as_dict`` by way of JSON. Raises TypeError for a key that no field has."""
        fields = dict(data)
        fields["jitter"] = Jitter(**fields["jitter"]) if fields.get("jitter") else None
        fields["stalls"] = tuple(Stall(**stall) for stall in fields.get("stalls", ()))
        fields["failures"] = tuple(Failure(**failure) for failure in fields.get("failures", ()))
        framing = dict(fields.get("framing", {}))
        framing["cuts"] = tuple(framing.get("cuts", ()))
        fields["framing"] = Framing(**framing)
        return Script(**fields)
