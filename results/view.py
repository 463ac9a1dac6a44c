"""The run as the judge sees it: prepared records joined with the engine's truth, and the spans in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from results.goodput import Marks, mark
from results.judging import Judging
from results.metrics import METRICS, Kind
from results.outcomes import Mask, prepared
from results.rates import Spans
from results.run import RunData
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
    _distributions: dict[tuple[str, bytes], Distribution] = field(default_factory=dict, repr=False)
    _all_samples: dict[str, Samples] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(run: RunData) -> View:
        last = run.records.sort_values(["id", "attempt"], kind="stable").drop_duplicates("id", keep="last")
        joined = with_truth(prepared(last, run.judging), run.truth)
        if run.plan is not None and "after_ns" in run.plan:
            thinking = run.plan.set_index("id")["after_ns"].astype("float64")
            joined = joined.assign(after_ns=joined["id"].map(thinking))
        if run.alone is not None:
            joined = joined.assign(alone=joined["id"].map(run.alone).astype("float64"))
        spans = {str(f["id"]): span for f in run.faults if (span := fault_span(f, run.judging)) is not None}
        marking = frozenset(str(f["id"]) for f in run.faults if f.get("type") in MARKING)
        attempts = None if run.attempts is None else prepared(run.attempts, run.judging)
        return View(run.judging, joined, spans, marking, attempts, run.plan)

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

    @cached_property
    def window(self) -> pd.DataFrame:
        """Records of the window, in due order."""
        return self.data[self.in_window]

    def of_class(self, name: str | None) -> Mask:
        """Rows of a class; None = all."""
        if name is None:
            return np.ones(len(self.data), dtype=bool)
        mask: Mask = (self.data["class"] == name).to_numpy(dtype=bool)
        return mask

    def by_class(self) -> dict[str, pd.DataFrame]:
        """The window's records by class, also the declared classes without any."""
        names = sorted(set(self.judging.classes) | set(self.data["class"].unique()))
        return {name: self.window[(self.window["class"] == name).to_numpy(dtype=bool)] for name in names}

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
        """A metric over some rows: of the completed ones, but a lag of the client over all (C24). Of a
        closed loop the schedule clock says nothing."""
        found = METRICS[metric]
        kept = rows if found.kind is Kind.LAG else rows & self.marks.completed
        why_none = "no samples"
        if metric.endswith("_sched"):
            any_loop, kept = kept, kept & self.open_loop
            why_none = CLOSED_LOOP if any_loop.any() and not kept.any() else why_none
        key = (metric, kept.tobytes())
        if key not in self._distributions:
            samples = self._samples(metric)
            chosen = kept[samples.owners]
            if not chosen.all():
                samples = Samples(samples.values[chosen], samples.owners[chosen])
            self._distributions[key] = Distribution(samples, found.pooled, why_none)
        return self._distributions[key]

    def _samples(self, metric: str) -> Samples:
        """Of all records; every distribution is a part of them."""
        if metric not in self._all_samples:
            of = METRICS[metric].samples
            assert of is not None, f"{metric} has no samples"
            self._all_samples[metric] = of(self.data)
        return self._all_samples[metric]

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
