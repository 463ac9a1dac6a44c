"""The run as the judge sees it: prepared records joined with the engine's truth, and the spans in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import pandas as pd

from results import token_events
from results.goodput import Marks, mark
from results.judging import Judging
from results.metrics import METRICS
from results.outcomes import Mask, prepared
from results.rates import Spans
from results.run import RunData
from results.sessions import session_stretch
from results.spans import MARKING, fault_span, meets
from results.stats.distribution import Distribution
from results.token_events import Samples

TRUTH_COLUMNS = (
    "worker",
    "incarnation",
    "received",
    "queued",
    "dispatched",
    "first_scheduled",
    "prefill_done",
    "first_write",
    "last_write",
    "finished",
    "prompt",
    "computed",
    "recomputed",
    "generated",
    "hit_device",
    "hit_host",
    "hit_disk",
    "hit_remote",
    "preemptions",
    "blocks_peak",
    "cancel_flagged",
    "reclaimed",
)
CLOSED_LOOP = "closed loop: due times follow the answers"
TIERS = ("device", "host", "disk", "remote")


@dataclass(frozen=True)
class View:
    """``data``: all records in due order, last attempts only, with truth columns where they are known."""

    judging: Judging
    data: pd.DataFrame
    faults: dict[str, tuple[int, int]]
    """Span of each injected fault: injected to recovered (MEASUREMENT C47), ns since t0."""
    own_requests: frozenset[str] = frozenset()
    """Faults that touch nothing but the requests that they mark (a cancel): beside them a run is steady."""
    attempts: pd.DataFrame | None = None
    """Attempts that another one followed; None = no request was tried again."""
    plan: pd.DataFrame | None = field(default=None, repr=False)
    t0_ns: int | None = None
    """t0 on the clock of the engine's truth, where there is one."""
    _distributions: dict[tuple[str, bytes], Distribution] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(run: RunData) -> View:
        last = run.records
        if not last["id"].is_unique:
            last = last.sort_values(["id", "attempt"], kind="stable").drop_duplicates("id", keep="last")
        joined = with_truth(prepared(last, run.judging), run.truth)
        if run.plan is not None and "after_ns" in run.plan:
            thinking = run.plan.set_index("id")["after_ns"].astype("float64")
            joined = joined.assign(after_ns=joined["id"].map(thinking))
        t0 = run.manifest.get("t0_ns")
        if t0 is not None and {"reclaimed", "cancel_flagged"} <= set(joined):
            joined = joined.assign(freed=joined["reclaimed"].astype("float64") - t0)
        if run.alone is not None:
            joined = joined.assign(alone=joined["id"].map(run.alone).astype("float64"))
        if run.ideal is not None:
            joined = joined.assign(ideal=joined["request_id"].map(run.ideal).astype("float64"))
        spans = {str(f["id"]): span for f in run.faults if (span := fault_span(f, run.judging)) is not None}
        marking = frozenset(str(f["id"]) for f in run.faults if f.get("type") in MARKING)
        attempts = None if run.attempts is None else prepared(run.attempts, run.judging)
        return View(run.judging, joined, spans, marking, attempts, run.plan, t0)

    @cached_property
    def marks(self) -> Marks:
        return mark(self.data, self.judging)

    @property
    def lives(self) -> pd.DataFrame:
        """[start, closed) of every attempt, also of those that another one followed (C35)."""
        own = self.data[["start", "closed"]]
        return own if self.attempts is None else pd.concat([own, self.attempts[["start", "closed"]]])

    @cached_property
    def open_loop(self) -> Mask:
        """Rows whose due times do not depend on answers."""
        closed = [name for name, goal in self.judging.classes.items() if not goal.open_loop]
        mask: Mask = ~self.data["class"].isin(closed).to_numpy(dtype=bool)
        return mask

    @cached_property
    def in_window(self) -> Mask:
        mask: Mask = (self.data["phase"] == "window").to_numpy(dtype=bool)
        return mask

    def part(self, rows: Mask) -> pd.DataFrame:
        """The records of some rows; all of them are not copied."""
        return self.data if rows.all() else self.data[rows]

    @cached_property
    def window(self) -> pd.DataFrame:
        """Records of the window, in due order."""
        return self.part(self.in_window)

    def of_class(self, name: str | None) -> Mask:
        """Rows of a class; None = all."""
        if name is None:
            return np.ones(len(self.data), dtype=bool)
        mask: Mask = (self.data["class"] == name).to_numpy(dtype=bool)
        return mask

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The classes, also the declared ones without any request."""
        return tuple(sorted(set(self.judging.classes) | set(self.data["class"].unique())))

    def meets(self, fault: str) -> Mask:
        """Rows whose [start, closed) meets the fault's span, or that the fault marked."""
        if fault in self.own_requests:
            marked: Mask = self.data["faults"].map(lambda ids: fault in ids).to_numpy(dtype=bool)
            return marked
        return meets(self.data, self.faults[fault])

    def steady(self) -> Mask:
        """Rows that meet no fault."""
        mask = np.ones(len(self.data), dtype=bool)
        for fault in self.faults:
            mask &= ~self.meets(fault)
        return mask

    def distribution(self, metric: str, rows: Mask) -> Distribution:
        """A metric over some rows: of the completed ones, but a lag and the like over all (C24). Of a
        closed loop the schedule clock says nothing."""
        found = METRICS[metric]
        kept = rows if found.every else rows & self.marks.completed
        why_none = "no samples"
        if metric.endswith("_sched"):
            any_loop, kept = kept, kept & self.open_loop
            why_none = CLOSED_LOOP if any_loop.any() and not kept.any() else why_none
        packed = np.packbits(kept)
        key = (metric, blake2b(packed.tobytes(), digest_size=16).digest())
        if key not in self._distributions:
            self._distributions[key] = Distribution(
                lambda: self._samples(metric, np.unpackbits(packed, count=len(kept)).astype(bool)),
                found.pooled,
                why_none,
            )
        return self._distributions[key]

    @cached_property
    def _sessions(self) -> Samples:
        """`session_stretch`, which takes long to make."""
        return session_stretch(self.data)

    def _samples(self, metric: str, kept: Mask) -> Samples:
        """Those of the ``kept`` rows."""
        found = METRICS[metric]
        assert found.samples is not None, f"{metric} has no samples"
        if found.pooled:  # too many to make more of them than are asked for
            rows = np.flatnonzero(kept).astype(np.int32)
            samples = found.samples(self.data[token_events.COLUMNS].iloc[rows])
            return Samples(samples.values, rows[samples.owners])
        samples = self._sessions if found.per_request is None else found.samples(self.data)
        chosen = kept[samples.owners]
        return samples if chosen.all() else Samples(samples.values[chosen], samples.owners[chosen])

    @property
    def window_spans(self) -> Spans:
        return (self.judging.window,)

    def fault_spans(self, fault: str) -> Spans:
        """The part of a fault's span inside the window: beyond it there is no load to have a rate."""
        (a, b), (x, y) = self.judging.window, self.faults[fault]
        low, high = max(a, x), min(b, y)
        return ((low, high),) if low < high else ()

    def steady_spans(self) -> Spans:
        """The window without the faults' spans."""
        spans: list[tuple[int, int]] = [self.judging.window]
        for a, b in (span for fault, span in self.faults.items() if fault not in self.own_requests):
            spans = [part for x, y in spans for part in ((x, min(y, a)), (max(x, b), y)) if part[0] < part[1]]
        return tuple(spans)


def with_truth(data: pd.DataFrame, truth: pd.DataFrame | None) -> pd.DataFrame:
    """Add the engine's columns by request id; the last attempt counts. ``tier`` is the slowest tier
    that served a hit."""
    if truth is None or not len(truth) or "id" not in truth:
        return data
    rows = truth.assign(request_id=truth["id"].astype(str))
    if "attempt" in rows:
        rows = rows.sort_values("attempt", kind="stable")
    rows = rows.drop_duplicates("request_id", keep="last").set_index("request_id")
    columns = [c for c in TRUTH_COLUMNS if c in rows]
    found = rows[columns].reindex(data["request_id"].astype(str).to_numpy())
    joined = data.assign(**{c: found[c].to_numpy() for c in columns})
    if "attempt" in rows:
        joined["engine_attempt"] = rows["attempt"].reindex(data["request_id"].astype(str)).to_numpy()
    known = found.notna().any(axis=1).to_numpy(dtype=bool)
    tier = np.where(known, "none", "").astype(object)
    for name in TIERS:
        if f"hit_{name}" in joined:
            tier = np.where((joined[f"hit_{name}"].fillna(0) > 0).to_numpy(dtype=bool), name, tier)
    return joined.assign(tier=tier)
