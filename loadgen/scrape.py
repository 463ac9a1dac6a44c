"""Reading a target's /metrics while a run goes on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from loadgen.clock import Clock


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series: a row of scrapes.parquet. ``t`` in ns since t0, ``labels`` as JSON."""

    t: int
    target: str
    name: str
    labels: str
    value: float


def samples(text: str, t: int, target: str, prefix: str = "", buckets: bool = True) -> list[Sample]:
    """The samples of a Prometheus text exposition (0.0.4) whose names begin with ``prefix``.

    Without ``buckets`` the lines of histogram buckets are left out, which are most of a page. Raises
    ValueError naming the first line that is no sample.
    """
    found = []
    for line in text.split("\n"):
        if not line or line[0] == "#" or not line.startswith(prefix):
            continue
        if not buckets and "_bucket{" in line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no sample of a metric: {line[:120]!r}")
        name, labels, value = match.group("name", "labels", "value")
        if not name.endswith("_created"):
            found.append(Sample(t, target, name, _as_json(labels or ""), float(value)))
    return found


_LINE = re.compile(
    r"""(?P<name>[a-zA-Z_:][\w:]*) \s*
        (?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? \s*
        (?P<value>[^\s{}]+) (?:\s+-?\d+)? \s*""",
    re.VERBOSE | re.ASCII,
)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")


@lru_cache(maxsize=16384)
def _as_json(labels: str) -> str:
    """The inside of a sample's braces as JSON with sorted keys. Raises ValueError."""
    pairs, at = {}, 0
    while at < len(labels.rstrip()):
        match = _LABEL.match(labels, at)
        if match is None:
            raise ValueError(f"no labels: {labels[:120]!r}")
        pairs[match.group(1)] = _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], match.group(2))
        at = match.end()
    return json.dumps(pairs, sort_keys=True)


@dataclass(slots=True)
class Scraper:
    """Scrapes at a fixed interval until it is cancelled; `since` gives what it got.

    Histogram buckets are read by ``once``, before and after a run, and not in between. A failed scrape is
    counted in ``failures`` with its reason and leaves a gap, never a zero.
    """

    fetch: Callable[[], Awaitable[str]]
    clock: Clock
    target: str = "target"
    interval: float = 1.0
    prefix: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    _rows: list[Sample] = field(default_factory=list)

    def since(self, t0: int) -> list[Sample]:
        """All samples, their times since ``t0`` (ns on the clock)."""
        return [replace(row, t=row.t - t0) for row in self._rows]

    async def once(self, buckets: bool = True) -> None:
        at = self.clock()
        try:
            self._rows += samples(await self.fetch(), at, self.target, self.prefix, buckets)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            self.failures[reason] = self.failures.get(reason, 0) + 1

    async def forever(self) -> None:
        while True:
            await self.once(buckets=False)
            await asyncio.sleep(self.interval)
