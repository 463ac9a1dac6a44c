"""How far a client's stamps are from the truth: its records against the reference server's log (C42).

Both sides stamp CLOCK_MONOTONIC on one host, so a difference is an error, not a guess: the client's stamp
of token k minus the server's just before its write of token k. It holds whatever the way of the bytes
between them costs, so it is never below zero but for the precision of the client's stamps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loadgen.reference.answers import End
from loadgen.reference.log import Entry
from results.record import Outcome
from results.stats.quantiles import quantile

RECORD_GRAIN_NS = 1_000
"""Records keep token times in whole µs, rounded down."""

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client says of one request: ns on CLOCK_MONOTONIC of its start and of each token event."""

    request_id: str
    start: int | None
    tokens: Times
    alone: NDArray[np.bool_]
    """The read that completed the event completed no other token event."""
    completed: bool
    bound: int = RECORD_GRAIN_NS
    """How far below the truth a stamp may be, ns: its precision and the error of clock conversions."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in ns; a quantile that n does not carry is None (C31)."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None

    @staticmethod
    def of(values: Iterable[NDArray[Any]]) -> Spread:
        parts = list(values)
        data = np.sort(np.concatenate(parts).astype(np.float64)) if parts else np.empty(0)
        if not len(data):
            return Spread(0)
        p50, p90, p99 = (quantile(data, q) for q in (0.5, 0.9, 0.99))
        return Spread(len(data), p50, p90, p99, float(data[0]), float(data[-1]))

    def as_dict(self) -> dict[str, Any]:
        """In ms."""
        named = asdict(self)
        ms = {
            f"{key}_ms": None if value is None else round(value / 1e6, 4)
            for key, value in named.items()
            if key != "n"
        }
        return {"n": self.n, **ms}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certified error of one client against one server. ``lost`` counts what the server wrote to its
    end and the client has not in full."""

    requests: int
    """In both: the records and the log."""
    ttft: Spread
    """Of token 1, of requests whose start the client stamped."""
    token: Spread
    itl: Spread
    """Error of the gap between neighbours."""
    one_event: Spread
    """Tokens whose read brought no other one: the rest share their read's time, an upper bound."""
    reach: Spread
    """From the client's start to the server's read of the last request byte: connecting, accepting."""
    lost_requests: int
    lost_tokens: int
    extra_tokens: int
    """Token events that the server never wrote: the two did not count the same thing."""
    not_in_log: int
    """Completed by the client and unknown to the server."""
    bound_ns: int
    early: int
    """Tokens stamped before the server wrote them, by more than the bound."""

    @property
    def clock_fault(self) -> bool:
        """A stamp that lies before its cause: the clocks, or the join, are wrong."""
        return self.early > 0

    @property
    def exact(self) -> bool:
        """Nothing lost, nothing made up, no clock fault."""
        lost = self.lost_requests + self.lost_tokens + self.extra_tokens + self.not_in_log
        return lost == 0 and not self.clock_fault

    def as_dict(self) -> dict[str, Any]:
        """For JSON; times in ms."""
        spreads = {
            name: value.as_dict()
            for name in ("ttft", "token", "itl", "one_event", "reach")
            if isinstance(value := getattr(self, name), Spread)
        }
        counts = {
            name: getattr(self, name)
            for name in ("requests", "lost_requests", "lost_tokens", "extra_tokens", "not_in_log", "early")
        }
        return {**counts, "clock_fault": self.clock_fault, "bound_ms": self.bound_ns / 1e6, **spreads}


def certify(seen: Sequence[Seen], log: Sequence[Entry]) -> Certificate:
    """Join by request id and compare; an id that comes again joins in order of time. Tokens that only one
    side has are counted and not compared."""
    pairs, unknown = _joined(seen, log)
    errors = [_errors(mine, entry) for mine, entry in pairs]
    both = list(zip(pairs, errors, strict=True))
    whole = [(mine, entry) for mine, entry in pairs if _served(entry)]
    joined = {id(entry) for _, entry in pairs}
    never = sum(_served(entry) and id(entry) not in joined for entry in log)
    return Certificate(
        requests=len(pairs),
        ttft=Spread.of(error[:1] for (mine, _), error in both if mine.start is not None),
        token=Spread.of(errors),
        itl=Spread.of(np.diff(error) for error in errors),
        one_event=Spread.of(error[mine.alone[: len(error)]] for (mine, _), error in both),
        reach=Spread.of(np.array([entry.read - s]) for mine, entry in pairs if (s := mine.start) is not None),
        lost_requests=never + sum(not mine.completed for mine, _ in whole),
        lost_tokens=sum(max(0, len(entry.stamps) - len(mine.tokens)) for mine, entry in whole),
        extra_tokens=sum(max(0, len(mine.tokens) - len(entry.stamps)) for mine, entry in pairs),
        not_in_log=sum(mine.completed for mine in unknown),
        bound_ns=max((mine.bound for mine in seen), default=0),
        early=sum(int((error < -mine.bound).sum()) for (mine, _), error in both),
    )


def _served(entry: Entry) -> bool:
    """The server wrote the answer to its end."""
    return entry.end is End.WHOLE and entry.status == 200


def _errors(mine: Seen, entry: Entry) -> Times:
    n = min(len(mine.tokens), len(entry.stamps))
    return mine.tokens[:n] - entry.stamps[:n]


def _joined(seen: Sequence[Seen], log: Sequence[Entry]) -> tuple[list[tuple[Seen, Entry]], list[Seen]]:
    waiting: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(log, key=lambda entry: -entry.read):
        waiting[entry.request_id].append(entry)
    pairs, unknown = [], []
    for mine in sorted(seen, key=lambda mine: mine.start or 0):
        if waiting[mine.request_id]:
            pairs.append((mine, waiting[mine.request_id].pop()))
        else:
            unknown.append(mine)
    return pairs, unknown


def seen_of(records: pd.DataFrame, t0: int) -> list[Seen]:
    """The requests of a records frame (results.recordfile) that were sent; ``t0`` is time zero of the run
    on CLOCK_MONOTONIC."""
    return [mine for row in _rows(records) if (mine := _seen(row, t0)) is not None]


def _rows(records: pd.DataFrame) -> Iterator[Mapping[str, Any]]:
    names = [name for name in _COLUMNS if name in records]
    columns = (records[name].tolist() for name in names)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


_COLUMNS = ("request_id", "outcome", "streamed", "start", "first_token", "event_us", "single", "skew_ns")


def _seen(row: Mapping[str, Any], t0: int) -> Seen | None:
    if not row["streamed"] or pd.isna(row["start"]):
        return None
    tokens = np.empty(0, np.int64)
    if not pd.isna(row["first_token"]):
        since = np.asarray(row["event_us"], np.int64) * 1000
        tokens = t0 + int(row["first_token"]) + since
    single = row.get("single")
    alone = np.asarray(single, bool) if _is_list(single) else np.ones(len(tokens), bool)
    return Seen(
        row["request_id"],
        t0 + int(row["start"]),
        tokens,
        alone,
        row["outcome"] == Outcome.COMPLETED,
        RECORD_GRAIN_NS + int(row.get("skew_ns") or 0),
    )


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def by_body(bodies: Sequence[bytes], log: Sequence[Entry]) -> list[Entry | None]:
    """For clients that send no id: the entry of each of ``bodies``, given in order of their sending. Equal
    bodies are told apart by order of arrival; None = it never arrived."""
    waiting: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(log, key=lambda entry: -entry.read):
        waiting[entry.digest].append(entry)
    digests = (blake2b(body, digest_size=8).hexdigest() for body in bodies)
    return [waiting[digest].pop() if waiting[digest] else None for digest in digests]
