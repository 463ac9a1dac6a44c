"""service_gap: how far apart two waiting tenants were served (MEASUREMENT 3, ENGINE E29)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.fairness import service_gap
from results.gates import GateError, parse_gate
from results.judging import SECOND, ClassGoal, Judging, Service
from results.record import Outcome, Record
from results.run import RunData, frame
from results.summary import judge
from results.view import View

MakeRun = Callable[..., RunData]
T0 = 3 * SECOND
EVEN = Service(1.0, 2.0, {})


def served(rows: list[dict[str, Any]], service: Service | None = EVEN, window_s: float = 100.0) -> RunData:
    """A run of requests given by tenant, queued and sent (s), computed tokens, and s of each output token."""
    records, truth = [], []
    for id, row in enumerate(rows):
        tokens = row.get("tokens", [])
        record = Record(id, "default", "window", Outcome.COMPLETED, tenant=row["tenant"], request_id=f"r{id}")
        record.due = record.start = record.terminal = record.closed = row["queued"] * SECOND
        record.rank = row.get("rank", 0)
        if tokens:
            record.first_token = round(tokens[0] * SECOND)
            record.event_us = [round((t - tokens[0]) * 1e6) for t in tokens]
            record.n_out = len(tokens)
        records.append(record)
        sent = row["sent"]
        truth.append(
            {"id": f"r{id}", "attempt": row.get("attempt", 1), "queued": T0 + round(row["queued"] * SECOND)}
            | {"dispatched": None if sent is None else T0 + round(sent * SECOND)}
            | {"finished": T0 + round(row.get("finished", 99) * SECOND), "computed": row.get("computed", 0)}
        )
    goals, window = {"default": ClassGoal()}, (0, round(window_s * SECOND))
    judging = Judging("made-up", 1, goals, window, service=service, own_engine=True, cache="as_is")
    return RunData(judging, frame(records), truth=pd.DataFrame(truth), manifest={"t0_ns": T0})


def gap(data: RunData, spans: tuple[tuple[int, int], ...] | None = None) -> Any:
    view = View.of(data)
    return service_gap(view, np.ones(len(view.data), dtype=bool), spans or view.window_spans)


WAITING = [{"tenant": "a", "queued": 0, "sent": 50}, {"tenant": "b", "queued": 0, "sent": 50}]


def test_the_gap_is_what_one_had_more_while_both_waited() -> None:
    """30 computed tokens and two output tokens of weight 2 for a, 10 computed for b: 24."""
    more = {"tenant": "a", "queued": 0, "sent": 10, "computed": 30, "tokens": [11, 12]}
    less = {"tenant": "b", "queued": 0, "sent": 20, "computed": 10}
    assert gap(served([*WAITING, more, less])).value == 34.0
    early = more | {"sent": 30, "tokens": [31, 32]}
    assert gap(served([*WAITING, early, less])).value == 34.0, "from b ahead by 10 to a ahead by 24"


def test_what_came_while_one_had_nothing_waiting_does_not_count() -> None:
    """Who wants nothing is owed nothing."""
    rows = [{"tenant": "a", "queued": 0, "sent": 50}, {"tenant": "b", "queued": 20, "sent": 30}]
    rows += [{"tenant": "a", "queued": 0, "sent": at, "computed": 100} for at in (10, 40)]
    assert gap(served(rows)).value == 0.0
    assert gap(served([*rows, {"tenant": "a", "queued": 0, "sent": 25, "computed": 7}])).value == 7.0


def test_weights_divide_what_was_had() -> None:
    """A tenant of weight 3 is served three times as much; one without a row has that of default."""
    rows = [*WAITING, {"tenant": "a", "queued": 0, "sent": 10, "computed": 30}]
    assert gap(served(rows, Service(1.0, 2.0, {"a": 3.0}))).value == 10.0
    assert gap(served(rows, Service(1.0, 2.0, {"default": 2.0}))).value == 15.0
    assert gap(served(rows, Service(0.5, 2.0, {}))).value == 15.0


def test_tenants_of_different_ranks_are_not_compared() -> None:
    """That the urgent ones come first is what a rank is for."""
    rows = [{"tenant": "a", "queued": 0, "sent": 50, "rank": 0}]
    rows += [{"tenant": "b", "queued": 0, "sent": 50, "rank": 1}]
    found = gap(served(rows))
    assert found.value is None
    assert found.reason == "no two tenants of a rank waited at the same time"


def test_only_the_window_counts() -> None:
    """Also not what was served before it to those that wait on into it."""
    rows = [*WAITING, {"tenant": "a", "queued": 0, "sent": 10, "computed": 30}]
    data = served(rows)
    assert gap(data, ((20 * SECOND, 40 * SECOND),)).value == 0.0
    assert gap(data, ((5 * SECOND, 15 * SECOND),)).value == 30.0


def test_what_was_sent_out_again_is_not_taken_to_have_waited() -> None:
    """Its last dispatch does not tell when it came back from its first."""
    again = {"tenant": "b", "queued": 0, "sent": 50, "attempt": 2}
    assert gap(served([WAITING[0], again])).value is None


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda run: setattr(run, "truth", None), "who waits at the target is not known"),
        (lambda run: setattr(run, "manifest", {}), "who waits at the target is not known"),
    ],
)
def test_what_cannot_be_known_says_why(spoil: Callable[[RunData], None], reason: str) -> None:
    """A foreign target shows no queue; one tenant is ahead of nobody."""
    data = served(WAITING)
    spoil(data)
    found = gap(data)
    assert found.value is None
    assert reason in found.reason
    assert "weights" in gap(served(WAITING, service=None)).reason
    assert gap(served(WAITING[:1])).reason == "fewer than two tenants had requests here"
    many = [{"tenant": f"t{k}", "queued": 0, "sent": 50} for k in range(201)]
    assert gap(served(many)).reason == "201 tenants; at most 200 are compared"


def test_gates_and_summary_have_it() -> None:
    """By class and in all, with a bound without unit, also during a fault."""
    data = served([*WAITING, {"tenant": "a", "queued": 0, "sent": 10, "computed": 30}])
    summary = judge(data, data.judging)
    assert summary["all"]["service_gap"] == summary["classes"]["default"]["service_gap"] == 30.0
    assert parse_gate("chat.service_gap during crash <= 5000", ["chat"], ["crash"]).bound == 5000.0
    with pytest.raises(GateError, match="one number"):
        parse_gate("service_gap.p90 < 5", ["chat"])


TIMES = st.integers(0, 40)


@st.composite
def loads(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for _ in range(draw(st.integers(2, 12))):
        queued, sent, last = sorted(draw(st.lists(TIMES, min_size=3, max_size=3, unique=True)))
        row = {"tenant": draw(st.sampled_from("abc")), "queued": queued, "sent": sent}
        row |= {"computed": draw(st.integers(0, 50)), "tokens": [last] * draw(st.booleans())}
        rows.append(row)
    return rows


@settings(max_examples=60, deadline=None)
@given(loads())
def test_no_span_has_a_larger_gap_than_the_one_that_is_told(rows: list[dict[str, Any]]) -> None:
    """Against every span between two moments, counted one by one."""
    found, best = gap(served(rows)), None
    for one, other in combinations("abc", 2):
        for a in range(40):
            for b in range(a + 1, 41):
                if all(_waits(rows, tenant, a, b) for tenant in (one, other)):
                    at = [_had(rows, tenant, a, b) for tenant in (one, other)]
                    best = max(best or 0.0, abs(at[0] - at[1]))
    assert found.value == best


def _waits(rows: list[dict[str, Any]], tenant: str, a: int, b: int) -> bool:
    """Some request of it at each moment between a and b."""
    lives = [(r["queued"], r["sent"]) for r in rows if r["tenant"] == tenant]
    return all(any(begin <= t and t + 1 <= end for begin, end in lives) for t in range(a, b))


def _had(rows: list[dict[str, Any]], tenant: str, a: int, b: int) -> float:
    """Strictly inside: of what happened at its ends is not known whether it was before."""
    mine = [r for r in rows if r["tenant"] == tenant]
    prompts = sum(float(r["computed"]) for r in mine if a < r["sent"] < b)
    return prompts + 2.0 * sum(a < t < b for r in mine for t in r["tokens"])
