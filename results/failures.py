"""Why requests failed: the few causes that most of them share, in the words of who said so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from results.record import Outcome

KINDS = 3
"""Causes that are told; the others are counted."""
_MOST_TEXT = 160
_NUMBERS = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*", re.I)
"""Numbers and ids differ from request to request; the cause is the same."""


@dataclass(frozen=True, slots=True)
class Cause:
    """``count`` requests ended so; ``text`` is what the first of them was told."""

    outcome: str
    count: int
    status: int | None
    text: str

    def __str__(self) -> str:
        status = "" if self.status is None or 200 <= self.status < 300 else f" {self.status}"
        said = f" ({self.text})" if self.text else ""
        return f"{self.count} {self.outcome}{status}{said}"

    @property
    def remedy(self) -> str:
        return _STATUS.get(self.status or 0) or _OUTCOME.get(self.outcome, _TARGET)


_TARGET = "see the log of the target"
_KEY = "check the API key: target.key_env names its variable, key_header its header"
_BODY = (
    "the target refuses the request: see what it does not understand (strict, accepts, temperature, model)"
)
_FULL = "the target turned them away: lower the rate, or have it admit more"
_STATUS = {
    **dict.fromkeys((400, 413, 415, 422), _BODY),
    **dict.fromkeys((401, 403), _KEY),
    **dict.fromkeys((301, 302, 303, 307, 308), "give target.url the address that it redirects to"),
    **dict.fromkeys((404, 405), "check target.url, model and dialect"),
    **dict.fromkeys((429, 503), _FULL),
}
_OUTCOME = {
    Outcome.CONNECT_ERROR.value: "is the target up, and does it take as many connections?",
    Outcome.TRUNCATED.value: "see the log of the target; check dialect",
    Outcome.CLIENT_TIMEOUT.value: "lower the rate, or raise this limit under timeouts",
    Outcome.RESET.value: "see the log of the target; if it closes idle connections, let it keep them longer",
}


def causes(window: pd.DataFrame) -> Iterator[Cause]:
    """Of requests that failed or were turned away, the most frequent first; none for those that a declared
    cap dropped."""
    failed = window["group"].isin(("failed", "rejected")) & (window["outcome"] != Outcome.DROPPED.value)
    found: dict[tuple[str, int | None, str], list[str]] = {}
    columns = ("outcome", "http_status", "timeout_limit", "error")
    for outcome, status, limit, error in zip(*(window.loc[failed, c] for c in columns), strict=True):
        code = None if pd.isna(status) else int(status)
        text = " ".join(next((said for said in (error, limit) if isinstance(said, str)), "").split())
        found.setdefault((outcome, code, _NUMBERS.sub("#", text[:_MOST_TEXT])), []).append(text)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    for (outcome, code, _), texts in ordered:
        shown = texts[0] if len(texts[0]) <= _MOST_TEXT else texts[0][: _MOST_TEXT - 1] + "…"
        yield Cause(outcome, len(texts), code, shown)
