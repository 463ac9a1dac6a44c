"""Drill invariants (FLEET 10): what must hold whatever broke, judged from records, truth and audits.

Never from log text. An invariant is broken, holds, or is not judged, with the reason; a target that
tells no truth leaves most of them not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faults.fault import FaultWindow, Seen
from results.record import Outcome, Record

T_EJECT = 2_000_000_000
"""ns until an unhealthy worker gets nothing more (FLEET F35)."""
T_BACK = 2_000_000_000
"""ns until a worker that is back gets something again (FLEET F38)."""
CANCEL_STEPS = 2
"""Steps from a cancel's flag to the last that touches the request, and to its blocks' return (E34)."""
FLAG_WITHIN = 100_000_000
"""ns from the client's close to the flag (E34)."""
ONE_STEP_S = 1.0
"""How far a request may outlive its deadline: no step takes longer."""
_SHOWN = 5
_UNCLEAN = ("missing_done", "missing_finish_reason")

Row = Mapping[str, Any]
Verdict = tuple[str, list[str]]
"""What was checked, and what of it is broken."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``ok`` None = not judged, and ``evidence`` says why."""

    id: str
    ok: bool | None
    evidence: str

    def row(self) -> dict[str, str]:
        """As it stands in the summary."""
        verdict = {True: "pass", False: "fail", None: "not_judged"}[self.ok]
        return {"id": self.id, "verdict": verdict, "evidence": self.evidence}


def check(seen: Seen) -> list[Judgement]:
    """Every drill invariant that this version can judge, then what the engine's own audits found."""
    judged = [Judgement(id, *_reasoned(rule, seen)) for id, rule in INVARIANTS.items()]
    return [*judged, *_audited(seen, {judgement.id for judgement in judged})]


class NotJudged(Exception):
    """Why an invariant cannot be judged."""


def _reasoned(rule: Callable[[Seen], Verdict], seen: Seen) -> tuple[bool | None, str]:
    try:
        checked, broken = rule(seen)
    except NotJudged as reason:
        return None, str(reason)
    if not broken:
        return True, checked
    more = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return False, "; ".join(broken[:_SHOWN]) + more


def one_outcome_each(seen: Seen) -> Verdict:
    """I1: each planned request has exactly one record."""
    counts = Counter(record.id for record in seen.records)
    planned = {shot.id for shot in seen.plan.shots}
    broken = [f"request {id} has {n} records" for id, n in counts.items() if n > 1]
    broken += [f"request {id} was planned and has no record" for id in sorted(planned - counts.keys())]
    broken += [f"request {id} has a record and was not planned" for id in sorted(counts.keys() - planned)]
    return f"{len(planned)} planned, {len(counts)} recorded", broken


def ids_match(seen: Seen) -> Verdict:
    """I3: each answered request is known to the server, and the server knows no other."""
    truth = _truth(seen)
    known = Counter(str(row["id"]) for row in truth if row.get("id"))
    maybe = Outcome.UNKNOWN  # the load process died: it may have sent it
    sent = {r.request_id for r in seen.records if r.start is not None or r.outcome is maybe}
    answered = {record.request_id for record in seen.records if record.outcome is Outcome.COMPLETED}
    broken = [f"{id} completed and the server has no row of it" for id in sorted(answered - known.keys())]
    broken += [f"the server served {id}, which was never sent" for id in sorted(known.keys() - sent)]
    broken += [f"the server has {n} rows of {id}" for id, n in sorted(known.items()) if n > 1]
    return f"{len(known)} rows of the server, {len(sent)} requests sent", broken


def tokens_agree(seen: Seen) -> Verdict:
    """I5: no more tokens arrive than were made, exactly as many where it completed; usage = counted."""
    checked, broken = 0, []
    for record, row in _pairs(seen):
        made = row.get("generated")
        if record.n_out is None or made is None or record.n_out_source not in ("usage", "ids"):
            continue
        checked += 1
        done = record.outcome is Outcome.COMPLETED
        if record.n_out > made or (done and record.n_out != made):
            broken.append(f"request {record.id}: {record.n_out} tokens arrived, {made} were made")
        if done and record.n_in is not None and record.n_in != row["prompt"]:
            broken.append(f"request {record.id}: usage says {record.n_in} in, the engine {row['prompt']}")
    return f"{checked} requests with counted tokens", broken


def streams_end(seen: Seen) -> Verdict:
    """I6: every 200 ends in one finish reason or one error event: no bare EOF. Our own engine also
    promised its ``[DONE]`` (F4); elsewhere a missing one is a warning of the dialect."""
    answered = [record for record in seen.records if record.http_status == 200]
    broken = []
    for record in answered:
        if record.outcome in (Outcome.TRUNCATED, Outcome.RESET, Outcome.UNKNOWN):
            broken.append(f"request {record.id}: 200, then {record.outcome} ({record.error or 'no reason'})")
        if seen.truth is not None and record.outcome is Outcome.COMPLETED:
            broken += [f"request {record.id}: {w}" for w in record.warnings if w.startswith(_UNCLEAN)]
    return f"{len(answered)} answers with status 200", broken


def cancels_are_obeyed(seen: Seen) -> Verdict:
    """I10: a cancel is flagged within 100 ms after the client's close, and at most 2 steps touch the request
    after the flag."""
    rows = _cancelled(seen)
    closed = {} if seen.truth_zero is None else _closed(seen, seen.truth_zero)
    broken = []
    for row in rows:
        if row["steps_after_cancel"] > CANCEL_STEPS:
            broken.append(f"{row['id']} was in {row['steps_after_cancel']} steps after its flag")
        late = row["cancel_flagged"] - closed.get(str(row["id"]), row["cancel_flagged"])
        if late > FLAG_WITHIN:
            broken.append(f"{row['id']} was flagged {late / 1e6:.0f} ms after its client had closed")
    return f"{len(rows)} cancelled requests", broken


def cancelled_blocks_return(seen: Seen) -> Verdict:
    """I14: a cancelled request's blocks can be handed out again at most 2 steps after its flag."""
    rows = _cancelled(seen)
    broken = []
    for row in rows:
        if row.get("reclaimed") is None:
            broken.append(f"{row['id']}: nobody saw its blocks come back")
        elif row["steps_to_reclaim"] > CANCEL_STEPS:
            broken.append(f"{row['id']}: its blocks came back {row['steps_to_reclaim']} steps after its flag")
    return f"{len(rows)} cancelled requests", broken


def blocks_return(seen: Seen) -> Verdict:
    """I12: at quiescence free + cached = N on every worker, nothing referenced, nothing waiting."""
    workers = _workers(seen)
    broken = []
    for worker in workers:
        name = f"worker {worker.get('worker')}"
        if worker["free"] != worker["blocks"]:
            broken.append(f"{name}: {worker['free']} of {worker['blocks']} blocks are free or cached")
        for key in ("referenced", "fenced", "waiting", "running"):
            if worker.get(key):
                broken.append(f"{name}: {key} is {worker[key]}, not 0")
    return f"{len(workers)} workers at rest", broken


def rejects_say_when(seen: Seen) -> Verdict:
    """I16, the part that records show: each 429 carries Retry-After."""
    rejects = [record for record in seen.records if record.http_status == 429]
    broken = [f"request {r.id}: 429 without Retry-After" for r in rejects if r.retry_after_s is None]
    return f"{len(rejects)} rejects", broken


def deadlines_hold(seen: Seen) -> Verdict:
    """I17: no request outlives its deadline by more than a step."""
    if not seen.deadlines:
        raise NotJudged("no class has a deadline")
    checked, broken = 0, []
    for record, row in _pairs(seen):
        deadline = seen.deadlines.get(record.class_)
        if deadline is None or row.get("finished") is None or row.get("received") is None:
            continue
        checked += 1
        lived = (row["finished"] - row["received"]) / 1e9
        if lived > deadline + ONE_STEP_S:
            broken.append(f"request {record.id} lived {lived:.2f} s, its deadline was {deadline:g} s")
    return f"{checked} requests with a deadline", broken


def unhealthy_get_nothing(seen: Seen) -> Verdict:
    """I19: from T_eject after the strike on, the struck worker is not chosen until it is back."""
    strikes = list(_strikes(seen))
    if not strikes:
        raise NotJudged("no worker was struck")
    broken = []
    for strike in strikes:
        for row in strike.rows:
            at = row["dispatched"]
            thawed = strike.window.proof.get("thawed")
            late = at > strike.injected + T_EJECT and (thawed is None or at < thawed)
            if late and row.get("incarnation") == strike.incarnation:
                after = (at - strike.injected) / 1e9
                broken.append(f"{strike.window.id}: {row['id']} was sent there {after:.2f} s after")
    return f"{len(strikes)} struck workers", broken


def returned_get_work(seen: Seen) -> Verdict:
    """I20: a worker that is back is chosen again within T_back, if enough arrives to tell."""
    enough = 20
    judged, broken = 0, []
    for strike in _strikes(seen):
        back = strike.window.healed
        if back is None:
            continue
        after = [row for row in strike.all_rows if back <= row["dispatched"] <= back + T_BACK]
        chosen = sum(row["worker"] == strike.worker for row in after)
        if chosen or len(after) >= enough:
            judged += 1
        if not chosen and len(after) >= enough:
            broken.append(f"{strike.window.id}: none of {len(after)} requests went to worker {strike.worker}")
    if not judged:
        raise NotJudged(f"no worker came back while {enough} requests arrived, or none was struck")
    return f"{judged} workers came back", broken


def nobody_else_leaves(seen: Seen) -> Verdict:
    """I28: no worker is replaced without a fault of its own."""
    lives: dict[Any, set[Any]] = {}
    for row in _truth(seen):
        if row.get("worker") is not None and row.get("incarnation"):
            lives.setdefault(row["worker"], set()).add(row["incarnation"])
    struck = Counter(window.target for window in seen.windows if window.injected is not None)
    broken = [
        f"worker {worker} had {len(found)} lives and {struck[f'worker {worker}']} faults"
        for worker, found in sorted(lives.items())
        if len(found) > 1 + struck[f"worker {worker}"]
    ]
    return f"{len(lives)} workers", broken


def faults_proven(seen: Seen) -> Verdict:
    """I29, the faults' part: each struck and was seen to. A fault that did not is no proof of anything."""
    if not seen.windows:
        raise NotJudged("the scenario has no faults")
    for window in seen.windows:
        if window.error or window.proven is None:
            raise NotJudged(f"{window.id}: {window.error or 'its effect was not seen'}")
    return f"{len(seen.windows)} faults proven", []


INVARIANTS: Mapping[str, Callable[[Seen], Verdict]] = {
    "I1": one_outcome_each,
    "I3": ids_match,
    "I5": tokens_agree,
    "I6": streams_end,
    "I10": cancels_are_obeyed,
    "I12": blocks_return,
    "I14": cancelled_blocks_return,
    "I16": rejects_say_when,
    "I17": deadlines_hold,
    "I19": unhealthy_get_nothing,
    "I20": returned_get_work,
    "I28": nobody_else_leaves,
    "I29": faults_proven,
}


def _audited(seen: Seen, known: set[str]) -> Iterator[Judgement]:
    """The engine's own rows (K1.., I2, I22), each broken if any audit found it so."""
    found: dict[str, list[Row]] = {}
    for audit in seen.audits:
        for row in audit.get("audit", audit).get("invariants", ()):
            found.setdefault(str(row["id"]), []).append(row)
    for id in ("I2", "I22"):
        if id not in found:
            yield Judgement(id, None, "the audits say nothing of it")
    for id, rows in found.items():
        if id in known:
            continue
        broken = [str(row.get("evidence") or "no evidence") for row in rows if row["ok"] is False]
        told = any(row["ok"] for row in rows)
        ok = False if broken else True if told else None
        evidence = "; ".join(broken[:_SHOWN]) if broken else f"{len(rows)} audits"
        yield Judgement(id, ok, evidence)


def _truth(seen: Seen) -> list[Row]:
    if seen.truth is None:
        raise NotJudged("the target tells no truth")
    return list(seen.truth)


def _pairs(seen: Seen) -> Iterable[tuple[Record, Row]]:
    """Each record with the server's row of it, where there is one."""
    rows = {str(row.get("id")): row for row in _truth(seen)}
    return [(record, rows[record.request_id]) for record in seen.records if record.request_id in rows]


def _cancelled(seen: Seen) -> list[Row]:
    """The cancelled requests whose flag was seen; a worker that died took the others' with it."""
    rows = [row for row in _truth(seen) if row.get("finish_reason") == "cancelled"]
    told = [row for row in rows if row.get("cancel_flagged") is not None]
    if not told:
        raise NotJudged(
            f"of {len(rows)} cancelled requests no flag was seen" if rows else "nothing was cancelled"
        )
    return told


def _closed(seen: Seen, zero: int) -> dict[str, int]:
    """When the client closed each request, by request id, at the latest, on the truth's clock in ns."""
    return {
        record.request_id: zero + record.closed + record.skew_ns
        for record in seen.records
        if record.closed is not None
    }


def _workers(seen: Seen) -> list[Row]:
    """The workers' rows of the last audit."""
    last = seen.audits[-1].get("audit", seen.audits[-1]) if seen.audits else {}
    workers: list[Row] = list(last.get("workers", ()))
    silent = [str(row.get("worker")) for row in workers if "blocks" not in row or "free" not in row]
    if silent or not workers:
        raise NotJudged(f"the last audit has nothing of worker {', '.join(silent) or '(none)'}")
    return workers


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that took a worker out. The rows' times are ns since t0, as the window's are."""

    window: FaultWindow
    worker: int
    injected: int
    incarnation: Any
    rows: list[dict[str, Any]]
    """What was sent to the struck worker."""
    all_rows: list[dict[str, Any]]


def _strikes(seen: Seen) -> Iterator[Strike]:
    windows = [w for w in seen.windows if w.injected is not None and w.target.startswith("worker ")]
    if not windows:
        return
    if seen.truth_zero is None:
        raise NotJudged("the truth's clock is not tied to the run's")
    rows = [
        dict(row) | {"dispatched": row["dispatched"] - seen.truth_zero}
        for row in _truth(seen)
        if row.get("dispatched") is not None
    ]
    for window in windows:
        assert window.injected is not None, "filtered above"
        worker = int(window.target.removeprefix("worker "))
        there = [row for row in rows if row.get("worker") == worker]
        yield Strike(window, worker, window.injected, window.proof.get("incarnation_before"), there, rows)
