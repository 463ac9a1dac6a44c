"""Why requests failed stands among the findings, in the words of who said so, with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from results.failures import KINDS, causes
from results.record import Record
from results.run import RunData, frame
from results.summary import judge

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]


def found(run: RunData) -> dict[str, Any] | None:
    listed = [one for one in judge(run)["findings"] if one["code"] == "failures"]
    return listed[0] if listed else None


def test_a_run_of_failures_says_what_the_server_said(record: Make, run_of: MakeRun) -> None:
    """Each cause once, the most frequent first, whatever numbers stand in its words."""
    records = [
        *[
            record(k, "http_error", due_ms=k, http_status=422, error=f"request {k}ab: unknown field 'x'")
            for k in range(5)
        ],
        *[record(k, "connect_error", due_ms=k, error="ECONNREFUSED: 127.0.0.1:80") for k in range(5, 8)],
        record(8, "client_timeout", due_ms=8, timeout_limit="first_token"),
        record(9, due_ms=9, ttft_ms=1, e2e_ms=2),
    ]
    finding = found(run_of(records))
    assert finding is not None
    assert finding["text"] == (
        "9 of 10 requests failed: 5 http_error 422 (request 0ab: unknown field 'x'), "
        "3 connect_error (ECONNREFUSED: 127.0.0.1:80), 1 client_timeout (first_token)"
    )
    assert "strict" in finding["remedy"]


def test_rare_causes_are_counted_together(record: Make, run_of: MakeRun) -> None:
    """A reader gets the first few; no request is left out of the sum."""
    records = [
        record(k, "in_band_error", due_ms=k, http_status=200, error=text)
        for k, text in enumerate(["a", "a", "b", "c", "d", "e"])
    ]
    finding = found(run_of(records))
    assert finding is not None
    assert finding["text"].endswith("1 in_band_error (c), 2 for other causes")
    assert KINDS == 3


@pytest.mark.parametrize(
    "outcome", ["cancelled_by_plan", "censored_by_run_end", "not_sent", "dropped", "expired"]
)
def test_what_no_server_failed_at_is_no_failure(record: Make, run_of: MakeRun, outcome: str) -> None:
    """The plan's own cancels, the end of the run, a declared cap, a deadline: told elsewhere."""
    records = [record(0, due_ms=0, ttft_ms=1, e2e_ms=2), record(1, outcome, due_ms=1, error="x")]
    assert found(run_of(records)) is None


@pytest.mark.parametrize(
    ("outcome", "more", "says"),
    [
        ("http_error", {"http_status": 401}, "API key"),
        ("http_error", {"http_status": 404}, "target.url"),
        ("http_error", {"http_status": 429}, "lower the rate"),
        ("http_error", {"http_status": 500}, "log of the target"),
        ("truncated", {"http_status": 307}, "redirects"),
        ("truncated", {"http_status": 200}, "dialect"),
        ("reset", {}, "idle connections"),
        ("in_band_error", {"http_status": 200}, "log of the target"),
    ],
)
def test_each_cause_has_a_remedy(
    record: Make, run_of: MakeRun, outcome: str, more: dict[str, Any], says: str
) -> None:
    """By status first, then by outcome; without words of the server too."""
    run = run_of([record(0, outcome, **more)])
    finding = found(run)
    assert finding is not None
    assert says in finding["remedy"]
    assert "()" not in finding["text"]


def test_long_words_are_cut(record: Make) -> None:
    """A page of HTML fits on a line."""
    rows = frame([record(0, "http_error", http_status=500, error="<p>\n" * 500)]).assign(group="failed")
    (cause,) = causes(rows)
    assert len(cause.text) == 160
    assert "\n" not in str(cause)
