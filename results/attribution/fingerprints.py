"""Salted hashes of a component's text (ATTRIBUTION A3): enough to compare, nothing to read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b

_MASKS = (
    re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    re.compile(r"(?:/[\w.@-]+){2,}/?|[A-Za-z]:\\[\w.\\@-]+"),  # paths
    re.compile(
        r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
    ),
    re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"),  # hex runs
    re.compile(r"\d+(?:[T:./ -]\d+)*Z?"),  # numbers, dates, clock times
)


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """``raw`` changes with any byte, ``canon`` not with key order or whitespace, ``mask`` neither with
    numbers, dates, UUIDs, hex runs and paths."""

    raw: str
    canon: str
    mask: str


def fingerprints(text: str, salt: bytes) -> Fingerprints:
    """Hashes of one component. ``salt`` is drawn for each run, at most 64 bytes."""
    canon = canonical(text)
    return Fingerprints(*(_digest(part, salt) for part in (text, canon, masked(canon))))


def canonical(text: str) -> str:
    """JSON with sorted keys, anything else with its whitespace collapsed."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        except ValueError:
            pass  # looks like JSON and is not: plain text
    return " ".join(text.split())


def masked(text: str) -> str:
    """``text`` with everything that a clock, counter or path generator changes replaced by ``#``."""
    for pattern in _MASKS:
        text = pattern.sub("#", text)
    return text


def _digest(text: str, salt: bytes) -> str:
    return blake2b(text.encode(), key=salt, digest_size=16).hexdigest()
