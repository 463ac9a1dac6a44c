"""What truly happened to each request, one plain row each (JOINTS 4).

The worker's truth joined with the gateway's times and route. Kept in a bounded ring; never an input of
attribution rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from engine.fleet.run import Run
from engine.request import Finish, Miss, Phase, TruthRow, WorkerTruth

MAX_ROWS = 200_000


def truth_row(
    run: Run,
    finish: Finish,
    truth: WorkerTruth | None,
    misses: Sequence[Miss],
    now: int,
    config_id: str,
    policy: str,
    flagged: int | None = None,
) -> TruthRow:
    """The row of an ended request. Without a worker's truth (never dispatched, or lost with its worker)
    what only a worker counts is None. ``flagged`` is when it was cancelled or expired while it waited
    at the gateway."""
    worked = truth is not None
    done = truth or WorkerTruth()
    return {
        "id": run.ask.client_id,
        "gateway_id": run.id,
        "attempt": run.attempt,
        "class": run.entry.class_,
        "session": run.ask.session,
        "worker": run.worker,
        "incarnation": run.incarnation,
        "epoch": truth.epoch if truth else run.epoch,
        "config_id": config_id,
        "received": run.received,
        "tokenised": run.queued,
        "queued": run.queued,
        "dispatched": run.dispatched,
        "first_scheduled": done.first_scheduled,
        "prefill_done": done.prefill_done,
        "first_write": run.first_write,
        "last_write": run.last_write,
        "finished": done.finished if done.finished is not None else now,
        "finish_reason": finish.value,
        "cancel_phase": _cancel_phase(run, finish, done),
        "cancel_flagged": done.cancel_flagged if worked else flagged,
        "reclaimed": done.reclaimed if worked else flagged,
        "steps_after_cancel": done.steps_after_cancel if worked else None if flagged is None else 0,
        "steps_to_reclaim": done.steps_to_reclaim if worked else None if flagged is None else 0,
        "prompt": len(run.request.tokens),
        "computed": done.computed if worked else None,
        "hit_device": done.hit_device if worked else None,
        "hit_host": 0 if worked else None,
        "hit_disk": 0 if worked else None,
        "hit_remote": 0 if worked else None,
        "generated": done.generated if worked else run.generated,
        "recomputed": done.recomputed if worked else None,
        "being_restored": 0 if worked else None,
        "misses": [
            {"reason": m.reason.value, "first_block": m.first_block, "blocks": m.blocks, "tokens": m.tokens}
            for m in misses
        ],
        "incomplete": not (worked and done.misses_complete),
        "blocks_peak": done.blocks_peak if worked else None,
        "steps_prefill": done.steps_prefill if worked else None,
        "steps_decode": done.steps_decode if worked else None,
        "rows_mean": done.rows_mean if worked else None,
        "step_tokens_mean": done.step_tokens_mean if worked else None,
        "preemptions": done.preemptions if worked else None,
        "route": _route(run, policy),
    }


def _cancel_phase(run: Run, finish: Finish, truth: WorkerTruth) -> str | None:
    """The worker's word; without it, as far as the gateway has seen the last attempt come."""
    if finish is not Finish.CANCELLED:
        return None
    if truth.cancel_phase is not None:
        return truth.cancel_phase
    return Phase.DECODE if run.first_token else Phase.PREFILL if run.started else Phase.QUEUED


def _route(run: Run, policy: str) -> dict[str, Any] | None:
    if run.choice is None:
        return None
    return {
        "policy": policy,
        "reason": run.choice.reason,
        "predicted_hit": run.choice.predicted_hit,
        "terms": {
            str(worker): {
                "prefill": t.prefill,
                "new": t.new,
                "decode": t.decode,
                "credit": t.credit,
                "cost": t.cost,
                "ttft": t.ttft,
            }
            for worker, t in run.choice.terms.items()
        },
    }


class TruthLog:
    """Finished rows, oldest first, numbered by ``seq`` from 1."""

    def __init__(self) -> None:
        self._rows: deque[TruthRow] = deque(maxlen=MAX_ROWS)
        self._by_id: dict[int, TruthRow] = {}
        self._seq = 0

    def add(self, row: TruthRow) -> None:
        self._seq += 1
        row["seq"] = self._seq
        if len(self._rows) == MAX_ROWS:
            self._by_id.pop(self._rows[0]["gateway_id"], None)
        self._rows.append(row)
        self._by_id[row["gateway_id"]] = row

    def wrote(self, id: int, now: int) -> None:
        """The last bytes of a stream leave after its request has ended."""
        row = self._by_id.get(id)
        if row is not None:
            row["first_write"] = row["first_write"] if row["first_write"] is not None else now
            row["last_write"] = now

    def after(self, seq: int) -> list[TruthRow]:
        """Rows with a greater ``seq``."""
        first = self._seq - len(self._rows)
        return [self._rows[i] for i in range(max(0, seq - first), len(self._rows))]
