"""When a server wants to be asked again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]*)?")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``Retry-After`` (or ``retry-after-ms``) asks for, 0 or more; None if it says nothing
    readable. Its date form counts from the ``Date`` of the same answer, so the server's clock alone is used.

    ``headers``: names in lower case.
    """
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    return seconds if seconds is not None else _between(headers.get("date"), value)


def _number(value: str | None) -> float | None:
    value = (value or "").strip()
    return float(value) if _NUMBER.fullmatch(value) else None


def _between(start: str | None, end: str | None) -> float | None:
    begun, ended = _date(start), _date(end)
    return max(0.0, (ended - begun).total_seconds()) if begun and ended else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value) if value else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # A date in -0000 comes without a zone, though it is UTC.
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date
