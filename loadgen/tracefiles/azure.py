"""Azure LLM inference traces: arrivals and lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from loadgen.tracefiles.base import Timed
from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.fields import MOST_SECONDS, NS, Field, count, digits, shown, take, tokens
from loadgen.tracefiles.reading import Source, table
from loadgen.tracefiles.recording import Recording, Singles, in_order

_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):(\d\d))?", re.ASCII
)

_MOST_AHEAD = 14 * 60
"""Minutes; no clock on earth is farther from UTC."""


def clock(value: str) -> int:
    """``2023-11-16 18:17:03.9799600``, with or without an offset from UTC, in ns. Raises ValueError."""
    found = _CLOCK.fullmatch(value)
    if found is None:
        raise ValueError(f"{shown(value)} is not a time such as 2023-11-16 18:17:03.9799600")
    day, hour, minute, second, fraction, _, sign, ahead_h, ahead_m = found.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise ValueError(f"{shown(value)} is no time of day")
    if not 1970 <= int(day[:4]) <= 2200:  # times and their differences fit into ns of 64 bits
        raise ValueError(f"{shown(value)} is not a time of our days")
    s = _days(day) * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign is not None:
        ahead = int(ahead_h) * 60 + int(ahead_m)
        if int(ahead_m) > 59 or ahead > _MOST_AHEAD:
            raise ValueError(f"{shown(value)} has no offset from UTC: -14:00 to +14:00")
        s -= ahead * 60 * (1 if sign == "+" else -1)
    return s * NS + int((fraction or "0").ljust(9, "0"))


@lru_cache(maxsize=64)
def _days(day: str) -> int:
    return datetime.strptime(day, "%Y-%m-%d").toordinal() - date(1970, 1, 1).toordinal()


_SPEC = {
    "TIMESTAMP": Field(clock),
    "ContextTokens": Field(digits(tokens)),
    "GeneratedTokens": Field(digits(tokens)),
    "NumImages": Field(digits(count), must=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Azure(Timed):
    """Azure CSV: TIMESTAMP, ContextTokens, GeneratedTokens, and NumImages in the set of 2025 (counted, not
    sent). No sessions, and no prompt shares anything with another."""

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        rows: list[tuple[int, int, int, int]] = []
        images = 0
        for line, cells in table(source, _SPEC):
            row = take(cells, _SPEC, source.say(line))
            if row is not None:
                rows.append((row["TIMESTAMP"], line, row["ContextTokens"], row["GeneratedTokens"]))
                images += row.get("NumImages", 0) > 0
        found.refuse()
        times, lines, given, asked = np.array(rows, dtype=np.int64).T
        order, late = in_order(times)
        if times.max() - times.min() > MOST_SECONDS * NS:
            source.say(int(lines[order[-1]]))(f"TIMESTAMP: more than {MOST_SECONDS:,} s after the first")
            found.refuse()
        return Recording(
            str(path),
            source.digest,
            Singles(lines, given, asked).ordered(order),
            times[order] - times.min(),
            {"rows": len(rows), "out_of_order": late, "with_images": images},
        )
