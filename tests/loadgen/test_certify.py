"""Certified errors of made-up clients, whose true error is known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.certify import Certificate, Seen, Spread, by_body, certify, seen_of
from loadgen.reference.answers import End
from loadgen.reference.log import Entry
from results.record import Outcome, Record
from results.recordfile import frame

MS = 1_000_000
T0 = 10**15


def entry(id: str, stamps: list[int], read: int = T0, **more: object) -> Entry:
    late = np.zeros(len(stamps), np.uint32)
    whole = Entry(id, 0, 0, read, read, 200, End.WHOLE, False, "", np.array(stamps, np.int64), late)
    return replace(whole, **more)  # type: ignore[arg-type]


def seen(id: str, tokens: list[int], start: int = T0, *, completed: bool = True) -> Seen:
    alone = np.array([tokens.count(t) == 1 for t in tokens], bool)
    return Seen(id, start, np.array(tokens, np.int64), alone, completed)


STAMPS = st.lists(st.integers(1, 50 * MS), min_size=1, max_size=20).map(
    lambda gaps: (T0 + np.cumsum(gaps)).tolist()
)


@given(st.lists(st.tuples(STAMPS, st.integers(0, 5 * MS), st.integers(0, 3 * MS)), min_size=1, max_size=8))
def test_a_constant_delay_is_found_and_gaps_have_no_error(
    requests: list[tuple[list[int], int, int]],
) -> None:
    """A client that is late by the same in all of a request's tokens: TTFT error = that, ITL error = 0."""
    log = [entry(str(k), stamps, T0 + reach) for k, (stamps, _, reach) in enumerate(requests)]
    mine = [seen(str(k), [t + late for t in stamps]) for k, (stamps, late, _) in enumerate(requests)]
    found = certify(mine, log[::-1])
    lates = [late for _, late, _ in requests]
    assert (found.ttft.least, found.ttft.most) == (min(lates), max(lates))
    assert found.token.n == sum(len(stamps) for stamps, _, _ in requests)
    assert found.itl.n == found.token.n - len(requests)
    assert found.itl.most in (None, 0.0)
    assert (found.reach.least, found.reach.most) == (
        min(reach for _, _, reach in requests),
        max(reach for _, _, reach in requests),
    )
    assert found.exact


@given(STAMPS, st.data())
def test_itl_error_is_the_difference_of_neighbours(stamps: list[int], data: st.DataObject) -> None:
    """Error of gap k = error of token k+1 minus error of token k, sign kept."""
    lates = data.draw(st.lists(st.integers(0, MS), min_size=len(stamps), max_size=len(stamps)))
    found = certify(
        [seen("r", [t + late for t, late in zip(stamps, lates, strict=True)])], [entry("r", stamps)]
    )
    expected = sorted(b - a for a, b in pairwise(lates))
    assert found.itl.n == len(expected)
    if expected:
        assert (found.itl.least, found.itl.most) == (expected[0], expected[-1])


def test_shared_reads_are_kept_apart() -> None:
    """Events of one read share its stamp: only those alone in theirs are in one_event."""
    log = [entry("r", [T0 + 10 * MS, T0 + 20 * MS, T0 + 30 * MS])]
    mine = [seen("r", [T0 + 25 * MS, T0 + 25 * MS, T0 + 30 * MS])]
    found = certify(mine, log)
    assert (found.token.n, found.one_event.n) == (3, 1)
    assert (found.token.most, found.one_event.most) == (15 * MS, 0.0)


def test_what_was_lost_is_counted_not_compared() -> None:
    """Whole answers without a record, records cut short, tokens nobody wrote, ids nobody served."""
    times = [T0 + k * MS for k in range(1, 6)]
    log = [entry(id, times) for id in ("fine", "short", "long", "never", "failed")]
    log.append(entry("scripted", times[:2], end=End.TRUNCATED))
    log.append(entry("refused", [], status=503))
    mine = [
        seen("fine", times),
        seen("short", times[:3], completed=False),
        seen("long", [*times, times[-1] + MS]),
        seen("failed", times, completed=False),
        seen("scripted", times[:2], completed=False),
        seen("refused", [], completed=False),
        seen("unknown", times),
    ]
    found = certify(mine, log)
    assert found.requests == 6
    assert found.lost_requests == 3  # never, short, failed
    assert (found.lost_tokens, found.extra_tokens, found.not_in_log) == (2, 1, 1)
    assert not found.exact


@pytest.mark.parametrize(("early", "fault"), [(900, False), (1_001, True)])
def test_a_stamp_before_its_cause_is_a_clock_fault(early: int, fault: bool) -> None:
    """Beyond the bound, here the µs that records keep."""
    found = certify([seen("r", [T0 + 5 * MS - early])], [entry("r", [T0 + 5 * MS])])
    assert found.clock_fault is fault
    assert found.token.least == -early


def test_the_same_id_again_joins_in_order_of_time() -> None:
    """Two attempts under one id: each meets its own entry."""
    log = [entry("r", [T0 + 9 * MS], T0 + 8 * MS), entry("r", [T0 + 2 * MS], T0 + MS)]
    mine = [seen("r", [T0 + 2 * MS], T0), seen("r", [T0 + 9 * MS], T0 + 7 * MS)]
    assert certify(mine[::-1], log).token.most == 0.0


def test_quantiles_that_n_does_not_carry_are_none() -> None:
    """p99 of 99 tokens is none, of 100 it is there; nothing at all has no quantile."""
    assert Spread.of([np.arange(99)]).p99 is None
    assert Spread.of([np.arange(101)]).p99 == 99.0
    assert Spread.of([]) == Spread(0)


def test_records_become_what_was_seen() -> None:
    """From a records frame: absolute times, whose read was whose, the bound of the clock conversion."""
    sent = Record(
        0,
        "c",
        "window",
        Outcome.COMPLETED,
        request_id="a",
        start=5,
        first_token=MS,
        event_us=[0, 10, 10],
        single=[True, False, False],
        skew_ns=300,
    )
    plain = replace(sent, id=1, request_id="b", single=None)
    empty = Record(2, "c", "window", Outcome.RESET, request_id="c", start=5)
    unsent = Record(3, "c", "window", Outcome.NOT_SENT, request_id="d")
    whole = replace(sent, id=4, request_id="e", streamed=False)
    a, b, c = seen_of(frame([sent, plain, empty, unsent, whole]), T0)
    assert a.tokens.tolist() == [T0 + MS, T0 + MS + 10_000, T0 + MS + 10_000]
    assert (a.start, a.completed, a.bound, a.alone.tolist()) == (T0 + 5, True, 1_300, [True, False, False])
    assert b.alone.tolist() == [True, True, True]
    assert (c.completed, c.tokens.tolist()) == (False, [])


def test_a_certificate_is_json_in_ms() -> None:
    """Spreads in ms, absent quantiles null."""
    found = certify([seen("r", [T0 + 2 * MS])], [entry("r", [T0 + MS])])
    said = json.loads(json.dumps(found.as_dict()))
    assert said["token"] == {
        "n": 1,
        "p50_ms": None,
        "p90_ms": None,
        "p99_ms": None,
        "least_ms": 1.0,
        "most_ms": 1.0,
    }
    assert isinstance(found, Certificate)


def test_clients_without_ids_join_by_body_and_order() -> None:
    """Equal bodies in order of arrival; what never arrived is None."""
    from hashlib import blake2b

    def digest(body: bytes) -> str:
        return blake2b(body, digest_size=8).hexdigest()

    late = entry("", [T0 + 3 * MS], T0 + 2 * MS, digest=digest(b"x"))
    early = entry("", [T0 + 2 * MS], T0 + MS, digest=digest(b"x"))
    other = entry("", [T0 + 2 * MS], T0, digest=digest(b"y"))
    assert by_body([b"x", b"y", b"x", b"x"], [late, early, other]) == [early, other, late, None]
