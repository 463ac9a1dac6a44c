"""Records for shots of which nothing, or nothing more, is known. Every planned shot has one record."""

from __future__ import annotations

from collections.abc import Container

from loadgen.plan import Plan, Shot
from results.record import Outcome, Record


def record_of(shot: Shot, outcome: Outcome, phase: str, model: str) -> Record:
    """A record with what the plan knows of ``shot``; nothing has happened yet."""
    return Record(
        id=shot.id,
        class_=shot.class_,
        phase=phase,
        outcome=outcome,
        tenant=shot.tenant,
        rank=shot.rank,
        session=shot.session,
        branch=shot.branch,
        turn=shot.turn,
        parent=shot.parent,
        model=model,
        adapter=shot.adapter,
        faults=[shot.fault] if shot.fault is not None else [],
        n_in_asked=shot.n_in_asked,
        n_out_asked=shot.n_out_asked,
    )


def unaccounted(plan: Plan, recorded: Container[int], model: str, why: str) -> list[Record]:
    """Records for the shots that a load process left without one when it died (`unknown`, C23).

    ``recorded``: ids that have a record. Later turns have no due time: theirs was never known.
    """
    missing = [shot for shot in plan.shots if shot.id not in recorded]
    records = [record_of(shot, Outcome.UNKNOWN, shot.phase, model) for shot in missing]
    for shot, record in zip(missing, records, strict=True):
        record.due, record.error = shot.due_ns, why
    return records
