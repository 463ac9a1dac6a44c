"""Drill invariants: each with a run in which it holds and one in which it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.fault import FaultWindow, Seen
from faults.invariants import INVARIANTS, Judgement, check
from loadgen.plan import Part, Phases, Plan, Shot
from results.record import Outcome, Record

S = 10**9
MS = 10**6
ZERO = 100 * S
"""t0 on the truth's clock."""


def shot(id: int) -> Shot:
    return Shot(id, "chat", "window", id, 0, (Part("user", 10, f"u{id}"),), 10, 8, due_ns=id * S)


def record(id: int, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "request_id": f"r{id}",
        "start": id * S,
        "http_status": 200,
        "n_in": 12,
        "n_out": 8,
        "n_out_source": "usage",
    }
    return Record(id, "chat", "window", changes.pop("outcome", Outcome.COMPLETED), **(values | changes))


def row(id: int, **changes: Any) -> dict[str, Any]:
    at = ZERO + id * S
    values = {
        "id": f"r{id}",
        "worker": id % 2,
        "incarnation": f"{id % 2}.1" if id < 4 or id % 2 == 0 else "1.2",
        "received": at,
        "dispatched": at,
        "finished": at + S,
        "prompt": 12,
        "generated": 8,
    }
    return values | changes


def worker(k: int, **changes: Any) -> dict[str, Any]:
    resting = {"referenced": 0, "fenced": 0, "waiting": 0, "running": 0}
    return {"worker": k, "blocks": 64, "free": 64} | resting | changes


def audit(*workers: dict[str, Any], **ok: bool | None) -> dict[str, Any]:
    rows = [{"id": id, "ok": value, "evidence": f"{id} seen"} for id, value in ok.items()]
    return {"invariants": rows, "workers": list(workers)}


def kill(**changes: Any) -> FaultWindow:
    window = FaultWindow("crash", "kill_worker", "worker 1", planned=3 * S, injected=3 * S, proven=3 * S)
    window.healed = 8 * S
    window.proof = {"incarnation_before": "1.1", "incarnation_after": "1.2"}
    for key, value in changes.items():
        setattr(window, key, value)
    return window


def whole() -> Seen:
    """Ten requests on two workers, one of which was killed at 3 s and was back at 8 s."""
    shots = tuple(shot(k) for k in range(10))
    served = [k for k in range(10) if k not in (3, 5, 7)]
    failed = [
        record(k, outcome=Outcome.IN_BAND_ERROR, n_out=2, error="worker_lost") if k == 3 else record(k)
        for k in range(10)
    ]
    rows = [row(k) for k in served]
    rows += [row(3, generated=2), row(5, worker=0, incarnation="0.1"), row(7, worker=0, incarnation="0.1")]
    return Seen(
        plan=Plan(shots, Phases(window=20.0), 1),
        records=failed,
        truth=rows,
        truth_zero=ZERO,
        audits=[audit(worker(0), worker(1), K1=True, I2=True, I22=True)],
        windows=[kill()],
        deadlines={"chat": 5.0},
    )


def judged(seen: Seen) -> dict[str, Judgement]:
    return {judgement.id: judgement for judgement in check(seen)}


def test_a_good_run_breaks_nothing() -> None:
    """All that can be judged holds; where nothing was cancelled, that is said."""
    found = judged(whole())
    assert {id: j.evidence for id, j in found.items() if j.ok is False} == {}
    open_ = {id: j.evidence for id, j in found.items() if j.ok is None}
    assert open_ == dict.fromkeys(("I10", "I14"), "nothing was cancelled")
    assert all(j.evidence for j in found.values())
    assert {"K1", "I2", "I22", *INVARIANTS} == set(found)


def test_a_cancel_at_the_bounds_breaks_nothing() -> None:
    """Flagged 100 ms after the close, last touched and freed 2 steps after the flag."""
    found = judged(with_cancelled()(whole()))
    assert (found["I10"].ok, found["I14"].ok) == (True, True)
    assert found["I10"].evidence == "1 cancelled requests"


def test_a_cancel_that_died_with_its_worker_is_not_judged() -> None:
    """Nobody saw the flag: no proof of anything."""
    found = judged(with_cancelled(cancel_flagged=None)(whole()))
    assert (found["I10"].ok, found["I14"].ok) == (None, None)
    assert found["I10"].evidence == "of 1 cancelled requests no flag was seen"


def test_without_a_common_clock_a_cancel_is_judged_by_its_steps() -> None:
    """How long after the close the flag came is left out, the rest stands."""
    seen = replace(with_cancelled(cancel_flagged=ZERO + 9 * S)(whole()), truth_zero=None)
    assert judged(seen)["I10"].ok is True


Break = Callable[[Seen], Seen]


def with_record(id: int, **changes: Any) -> Break:
    return lambda seen: replace(
        seen, records=[record(id, **changes) if r.id == id else r for r in seen.records]
    )


def with_row(id: int, **changes: Any) -> Break:
    def change(seen: Seen) -> Seen:
        assert seen.truth is not None
        return replace(seen, truth=[dict(r) | changes if r["id"] == f"r{id}" else r for r in seen.truth])

    return change


def with_cancelled(**changes: Any) -> Break:
    """Request 4's client closes at 5 s."""
    flagged = {
        "finish_reason": "cancelled",
        "cancel_flagged": ZERO + 5 * S + 100 * MS,
        "reclaimed": ZERO + 6 * S,
        "steps_after_cancel": 2,
        "steps_to_reclaim": 2,
    }
    closed = with_record(4, outcome=Outcome.CANCELLED_BY_PLAN, closed=5 * S, n_out=None)
    return lambda seen: with_row(4, **(flagged | changes))(closed(seen))


def with_audits(*audits: dict[str, Any]) -> Break:
    return lambda seen: replace(seen, audits=audits)


@pytest.mark.parametrize(
    ("id", "broken", "says"),
    [
        ("I1", lambda s: replace(s, records=s.records[1:]), "request 0 was planned and has no record"),
        ("I1", lambda s: replace(s, records=[*s.records, record(4)]), "request 4 has 2 records"),
        ("I1", lambda s: replace(s, records=[*s.records, record(44)]), "request 44 has a record and was not"),
        ("I3", lambda s: replace(s, truth=s.truth[1:]), "r0 completed and the server has no row of it"),
        (
            "I3",
            lambda s: replace(s, truth=[*s.truth, row(77)]),
            "the server served r77, which was never sent",
        ),
        ("I3", lambda s: replace(s, truth=[*s.truth, row(4)]), "the server has 2 rows of r4"),
        ("I5", with_record(2, n_out=9), "request 2: 9 tokens arrived, 8 were made"),
        ("I5", with_record(2, n_out=7), "request 2: 7 tokens arrived, 8 were made"),
        ("I5", with_record(2, n_in=99), "request 2: usage says 99 in, the engine 12"),
        (
            "I6",
            with_record(2, outcome=Outcome.TRUNCATED, error="eof"),
            "request 2: 200, then truncated (eof)",
        ),
        ("I6", with_record(2, warnings=["missing_done"]), "request 2: missing_done"),
        ("I10", with_cancelled(steps_after_cancel=3), "r4 was in 3 steps after its flag"),
        (
            "I10",
            with_cancelled(cancel_flagged=ZERO + 5 * S + 101 * MS),
            "r4 was flagged 101 ms after its client had closed",
        ),
        ("I14", with_cancelled(steps_to_reclaim=3), "r4: its blocks came back 3 steps after its flag"),
        ("I14", with_cancelled(reclaimed=None), "r4: nobody saw its blocks come back"),
        ("I12", with_audits(audit(worker(0, free=60))), "worker 0: 60 of 64 blocks are free or cached"),
        ("I12", with_audits(audit(worker(1, running=1))), "worker 1: running is 1, not 0"),
        (
            "I16",
            with_record(2, outcome=Outcome.HTTP_ERROR, http_status=429),
            "request 2: 429 without Retry-After",
        ),
        ("I17", with_row(2, finished=ZERO + 20 * S), "request 2 lived 18.00 s, its deadline was 5 s"),
        ("I19", with_row(6, worker=1, incarnation="1.1"), "crash: r6 was sent there 3.00 s after"),
        ("I28", with_row(0, incarnation="0.9"), "worker 0 had 2 lives and 0 faults"),
        ("K1", with_audits(audit(worker(0), K1=True), audit(worker(0), K1=False)), "K1 seen"),
    ],
)
def test_each_break_is_found_with_its_evidence(id: str, broken: Break, says: str) -> None:
    """The invariant that was broken fails, and its evidence names the request, worker or fault."""
    found = judged(broken(whole()))[id]
    assert found.ok is False
    assert says in found.evidence
    assert found.row() == {"id": id, "verdict": "fail", "evidence": found.evidence}


def test_a_worker_that_gets_no_work_after_its_return_breaks_i20() -> None:
    """With plenty of arrivals after the return and none for it, the way back is broken."""
    seen = whole()
    assert seen.truth is not None
    busy = [row(100 + k, worker=0, dispatched=ZERO + 8 * S + k) for k in range(20)]
    idle = [r for r in seen.truth if r["worker"] == 0]
    assert judged(replace(seen, truth=[*idle, *busy]))["I20"].ok is False
    assert judged(replace(seen, truth=[*idle, *busy[3:]]))["I20"].ok is None


def test_a_frozen_worker_may_be_chosen_once_thawed() -> None:
    """I19 ends where the fault ends: the same incarnation serves again."""
    thawed = {"incarnation_before": "1.1", "thawed": 6 * S}
    seen = replace(whole(), windows=[kill(type="freeze_worker", proof=thawed)])

    def chosen_at(t: int) -> bool | None:
        return judged(with_row(6, worker=1, incarnation="1.1", dispatched=ZERO + t)(seen))["I19"].ok

    assert chosen_at(5 * S) is True  # T_eject not over
    assert chosen_at(6 * S - 1) is False
    assert chosen_at(6 * S) is True


def test_a_worker_that_did_not_answer_leaves_i12_open() -> None:
    """All workers count, the restarted ones too: one that says nothing is no proof of rest."""
    found = judged(replace(whole(), audits=[audit(worker(0), {"worker": 1, "answered": False})]))["I12"]
    assert (found.ok, found.evidence) == (None, "the last audit has nothing of worker 1")


def test_an_unproven_fault_is_not_a_pass() -> None:
    """A fault that was not seen to strike leaves I29 open, with its words."""
    window = kill(proven=None, error="nothing reached prefill:1")
    found = judged(replace(whole(), windows=[window]))["I29"]
    assert (found.ok, found.evidence) == (None, "crash: nothing reached prefill:1")
    assert found.row()["verdict"] == "not_judged"


def test_a_foreign_target_is_judged_from_records_alone() -> None:
    """Without truth and audits, what needs them is not judged, and says so."""
    found = judged(replace(whole(), truth=None, truth_zero=None, audits=(), windows=()))
    assert {id for id, j in found.items() if j.ok is not None} == {"I1", "I6", "I16"}
    assert found["I5"].evidence == "the target tells no truth"


def test_a_foreign_target_may_leave_out_done() -> None:
    """A missing [DONE] is a warning of the dialect; only our own engine promised it."""
    seen = replace(with_record(2, warnings=["missing_done"])(whole()), truth=None)
    assert judged(seen)["I6"].ok is True


def test_estimated_tokens_prove_nothing() -> None:
    """Counts that were estimated from events are no evidence against the engine."""
    assert judged(with_record(2, n_out=99, n_out_source="events")(whole()))["I5"].ok is True


def test_without_a_common_clock_times_are_not_compared() -> None:
    """I19 needs the truth's clock tied to the run's."""
    assert judged(replace(whole(), truth_zero=None))["I19"].ok is None
