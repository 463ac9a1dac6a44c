"""Made-up runs: small records for one rule, and a whole run with everything a report can show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.judging import SECOND, ClassGoal, Judging
from results.record import Outcome, Record
from results.run import RunData, frame, scrape_frame
from results.summary import judge

MS = 1_000_000


def make_record(id: int, outcome: str = "completed", **given: Any) -> Record:
    """A record from ms: ``due_ms``, ``ttft_ms``, ``e2e_ms``, ``after_ms`` (for what did not complete),
    ``gaps_ms`` (one token each); other keywords are fields."""
    due_ms, lag_ms = given.pop("due_ms", 0.0), given.pop("lag_ms", 0.0)
    ttft, e2e = given.pop("ttft_ms", None), given.pop("e2e_ms", None)
    after, gaps = given.pop("after_ms", None), given.pop("gaps_ms", None)
    record = Record(id, given.pop("class_", "default"), given.pop("phase", "window"), Outcome(outcome))
    record.due = round(due_ms * MS)
    if outcome != "not_sent":
        record.dequeued = record.start = record.conn = record.sent = record.due + round(lag_ms * MS)
        if ttft is not None or e2e is not None:
            _answer(record, ttft if ttft is not None else e2e, e2e, gaps)
        record.closed = record.terminal or record.start + round((after or 0.0) * MS)
    for name, value in given.items():
        setattr(record, name, value)
    return record


def _answer(record: Record, ttft: float, e2e: float | None, gaps: list[float] | None) -> None:
    assert record.start is not None
    record.headers = record.first_event = record.first_token = record.start + round(ttft * MS)
    record.first_visible = record.first_token
    if gaps is None:
        gaps = [e2e - ttft] if e2e is not None and e2e > ttft else []
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    record.event_us = [round(t * 1000) for t in times]
    record.n_out, record.n_out_source = len(times), "usage"
    record.last_token = record.terminal = record.first_token + round(times[-1] * MS)
    record.finish = "stop"


def make_run(records: list[Record], window_s: float = 10.0, **judging: Any) -> RunData:
    """A run of these records whose window starts at 0."""
    known: dict[str, Any] = {"classes": {"default": ClassGoal()}, "cache": "as_is"}
    window = (0, round(window_s * SECOND))
    return RunData(Judging("made-up", 1, window=window, **(known | judging)), frame(records))


@pytest.fixture
def record() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def run_of() -> Callable[..., RunData]:
    return make_run


def whole_run(seed: int = 7, seconds: int = 60) -> RunData:
    """Two classes on two workers: a burst at 15 s, cancels, a worker killed at 30 s."""
    rng = np.random.default_rng(seed)
    records: list[Record] = []
    for name, rate, rank in (("chat", 4.0, 0), ("batch", 0.8, 1)):
        due = 0.0
        while (due := due + rng.exponential(1 / rate)) < seconds:
            records.append(_played(len(records), name, rank, due, rng))
    for due in np.sort(rng.uniform(15, 17, 24)):
        records.append(_played(len(records), "chat", 0, float(due), rng, fault="rush"))
    goals = {
        "chat": ClassGoal(0, {"ttft_sched": 1.0, "itl": 0.08, "e2e_sched": 6.0}, ("stop", "length")),
        "batch": ClassGoal(1, {"e2e_sched": 15.0}),
    }
    gates = (
        "attainment >= 90%",
        "chat.ttft_sched.p90 < 1500ms",
        "chat.ttft_sched.p90 during crash < 800ms",
        "chat.itl.p99 < 60ms",
        "kv.leaked_blocks == 0",
        "invariants.failed == 0",
        "attribution.missed_tokens.app_reset == 0",
    )
    window = (5 * SECOND, (seconds - 5) * SECOND)
    judging = Judging(
        "quickstart",
        seed,
        goals,
        window,
        gates,
        question="What do a burst and a worker kill do to two classes on two workers?",
        virtual=True,
        plan_digest="5f0c9a3e17d24b66",
        own_engine=True,
        timeouts={"connect": 5.0, "first_token": 30.0, "between_tokens": 10.0, "total": 60.0},
        demand={"chat": {"prefill_tokens_s": 1800.0, "decode_tokens_s": 128.0, "kv_tokens_mean": 2100.0}},
    )
    return RunData(
        judging,
        frame(records),
        plan=pd.DataFrame({"id": [r.id for r in records]}),
        faults=_faults(),
        audits=[{"when": "after", "workers": [{"worker": w, "leaked_blocks": 0} for w in (0, 1)]}],
        scrapes=_scrapes(seconds, rng),
        truth=_truth(records, rng),
        signals={
            "loop_lag_p99_ns": 900_000,
            "gc_pause_max_ns": 0,
            "cpu_ratio": 0.41,
            "lost": 0,
            "stamp": "user",
        }
        | {"gateway_requests": sum(r.sent is not None for r in records)},
        invariants=[{"id": f"I{i}", "verdict": "pass", "evidence": ""} for i in (1, 2, 3, 6, 12, 14)],
        attribution=_rollup(),
    )


def _slowdown(due: float) -> float:
    """A queue after the burst, and half of the capacity after the kill."""
    burst = 2.2 * np.exp(-((due - 17.5) ** 2) / 6) if due > 14.5 else 0.0
    crash = 3.0 * np.exp(-(due - 30) / 3) if due >= 30 else 0.0
    return float(1 + burst + crash)


def _played(
    id: int, name: str, rank: int, due: float, rng: np.random.Generator, fault: str | None = None
) -> Record:
    base = 180.0 if name == "chat" else 900.0
    ttft = base * float(rng.lognormal(0, 0.3)) * _slowdown(due)
    gaps = [
        float(g)
        for g in 24 * rng.lognormal(0, 0.25, int(rng.integers(20, 60))) * (0.6 + 0.4 * _slowdown(due))
    ]
    n_in = int(rng.integers(380, 640)) if name == "chat" else int(rng.integers(1200, 2400))
    extra: dict[str, Any] = {
        "class_": name,
        "rank": rank,
        "due_ms": due * 1000,
        "lag_ms": float(rng.exponential(0.3)),
        "request_id": f"r{id}",
        "session": id // 3,
        "turn": id % 3,
        "n_in": n_in,
        "prompt_total": n_in,
        "cache_read": 0 if id < 3 else int(n_in * rng.choice([0.0, 0.6, 0.85])) // 16 * 16,
        "faults": [fault] if fault else [],
    }
    if 29.6 < due < 30.4:
        return make_record(id, "in_band_error", after_ms=ttft, http_status=200, error="worker lost", **extra)
    if fault and rng.random() < 0.2:
        return make_record(id, "http_error", after_ms=4.0, http_status=429, retry_after_s=1.0, **extra)
    if name == "chat" and rng.random() < 0.08:
        return make_record(id, "cancelled_by_plan", after_ms=ttft + sum(gaps[:5]), **extra)
    return make_record(id, ttft_ms=ttft, gaps_ms=gaps, **extra)


def _faults() -> list[dict[str, Any]]:
    s = SECOND
    return [
        {"id": "rush", "type": "burst", "target": "chat", "planned": 15 * s, "injected": 15 * s}
        | {"proven": 16 * s, "healed": 17 * s, "recovered": 20 * s, "proof": {"sent": 24}, "error": None},
        {"id": "crash", "type": "kill_worker", "target": "worker 1", "planned": 30 * s, "injected": 30 * s}
        | {
            "proven": 30 * s + 40 * MS,
            "healed": 34 * s,
            "recovered": 36 * s,
            "proof": {"exit": -9},
            "error": None,
        },
    ]


def _scrapes(seconds: int, rng: np.random.Generator) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    levels = {0: 300.0, 1: 280.0}
    for t in range(seconds * 2):
        for worker, level in levels.items():
            dead = worker == 1 and 30 <= t / 2 < 34
            level = (
                0.0
                if dead
                else float(np.clip(level + rng.normal(0, 40) + 30 * (_slowdown(t / 2) - 1.4), 60, 900))
            )
            levels[worker] = level
            cached = 0.0 if dead else min(1024 - level, 200 + 12.0 * (t % 60))
            states = {"used": level, "cached": cached, "empty": 1024 - level - cached, "fenced": 0.0}
            rows += [
                {
                    "t": t * SECOND // 2,
                    "target": "engine",
                    "name": "headrace_engine_kv_blocks",
                    "value": value,
                }
                | {"labels": {"worker": str(worker), "state": state}}
                for state, value in states.items()
                if not dead
            ]
    return scrape_frame(rows)


def _truth(records: list[Record], rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for r in records:
        if r.start is None or r.first_token is None:
            continue
        wait = int((r.first_token - r.start) * 0.4)
        rows.append(
            {
                "id": r.request_id,
                "attempt": 1,
                "worker": int(rng.integers(0, 2)),
                "received": r.start + 100_000,
                "first_scheduled": r.start + wait,
                "first_write": r.first_token - 80_000,
                "prompt": r.n_in,
                "computed": (r.n_in or 0) - (r.cache_read or 0),
                "recomputed": 0,
                "generated": r.n_out,
                "hit_device": r.cache_read,
                "preemptions": int(rng.random() < 0.02),
            }
        )
    return pd.DataFrame(rows)


def _rollup() -> dict[str, Any]:
    return {
        "outcomes": {"hit": 160, "cold": 60, "app_reset": 22, "unexplained": 9, "concurrent": 3},
        "missed_tokens": {"app_reset": 8120, "expiry": 640, "boundary": 0, "unexplained": 2310},
        "ledger": {"new": 52000, "changed": 7900, "policy": 1400, "boundary": 0}
        | {"expiry": 640, "unexplained": 2310, "read": 81000, "bonus": 0},
        "avoidable_tokens": 8120,
        "top": [
            {"component": "system[0]", "subtype": "system_volatile_value", "outcome": "app_reset"}
            | {"requests": 19, "missed": 7420, "intentional": False, "example": "r41", "confidence": 0.99}
            | {"first_divergence": {"path": "system[0]", "token_in_component": 12, "token_index": 15}},
            {"component": "none", "subtype": "full", "outcome": "unexplained"}
            | {
                "requests": 9,
                "missed": 2310,
                "example": "r155",
                "confidence": 0.85,
                "first_divergence": None,
            },
        ],
    }


@pytest.fixture(scope="session")
def run_with_everything() -> RunData:
    return whole_run()


@pytest.fixture(scope="session")
def its_summary(run_with_everything: RunData) -> dict[str, Any]:
    """The summary of ``run_with_everything``."""
    return judge(run_with_everything)
