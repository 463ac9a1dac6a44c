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
WORKERS_OWN = (
    *("first_scheduled", "prefill_done"),
    *("cancel_flagged", "reclaimed", "steps_after_cancel", "steps_to_reclaim"),
    *("computed", "hit_device", "hit_host", "hit_disk", "generated", "recomputed", "preemptions"),
    *("blocks_peak", "steps_prefill", "steps_decode", "rows_mean", "step_tokens_mean"),
)
"""Fields of WorkerTruth that go into the row under their own names."""
TIERS_AHEAD = ("hit_remote", "being_restored")
"""What no worker has yet: 0 wherever a worker counted."""


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
        "first_write": run.first_write,
        "last_write": run.last_write,
        "finished": now if truth is None or truth.finished is None else truth.finished,
        "finish_reason": finish.value,
        "cancel_phase": _cancel_phase(run, finish, truth or WorkerTruth()),
        "prompt": len(run.request.tokens),
        "misses": [
            {"reason": m.reason.value, "first_block": m.first_block, "blocks": m.blocks, "tokens": m.tokens}
            for m in misses
        ],
        "route": _route(run, policy),
        **(_unworked(run, flagged) if truth is None else _worked(truth)),
    }


def _worked(truth: WorkerTruth) -> TruthRow:
    """What the worker knows of it."""
    counted = {name: getattr(truth, name) for name in WORKERS_OWN}
    return counted | dict.fromkeys(TIERS_AHEAD, 0) | {"incomplete": not truth.misses_complete}


def _unworked(run: Run, flagged: int | None) -> TruthRow:
    """No worker tells: what the gateway has seen, and None for the rest."""
    unknown = dict.fromkeys((*WORKERS_OWN, *TIERS_AHEAD))
    steps = None if flagged is None else 0
    return unknown | {
        "generated": run.generated,
        "cancel_flagged": flagged,
        "reclaimed": flagged,
        "steps_after_cancel": steps,
        "steps_to_reclaim": steps,
        "incomplete": True,
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
