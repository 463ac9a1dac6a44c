"""One metrics page of many processes: counters survive a worker's death (OBSERVABILITY O6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from engine.config import EngineConfig
from engine.metrics import METRICS, Metric
from engine.telemetry import Snapshot

_Key = tuple[str, ...]


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot of several, oldest first: counters and histograms add up, gauges as they declare."""
    merged: dict[str, dict[_Key, Any]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.items():
            into = merged.setdefault(name, {})
            for labels, value in series:
                key = tuple(labels)
                into[key] = _joined(METRICS[name], into[key], value) if key in into else value
    return {name: [[list(key), value] for key, value in series.items()] for name, series in merged.items()}


def _joined(metric: Metric, old: Any, new: Any) -> Any:
    if metric.kind == "histogram":
        return [old[0] + new[0], [a + b for a, b in zip(old[1], new[1], strict=True)]]
    if metric.kind == "counter" or metric.aggregate == "sum":
        return old + new
    return max(old, new) if metric.aggregate == "max" else new


class FleetMeters:
    """What the gateway knows of its workers' meters: the last snapshot of each living incarnation, and
    the counters of those that are gone."""

    def __init__(self) -> None:
        self._living: dict[int, tuple[str, Snapshot]] = {}
        self._gone: dict[int, Snapshot] = {}

    def update(self, worker: int, incarnation: str, snapshot: Snapshot) -> None:
        """Take a heartbeat's cumulative snapshot. A new incarnation closes the one before."""
        known = self._living.get(worker)
        if known is not None and known[0] != incarnation:
            self.lost(worker)
        self._living[worker] = (incarnation, snapshot)

    def lost(self, worker: int) -> None:
        """The worker's process is gone: keep what it counted, forget its gauges. Idempotent."""
        if worker not in self._living:
            return
        _, snapshot = self._living.pop(worker)
        counted = {name: series for name, series in snapshot.items() if METRICS[name].kind != "gauge"}
        self._gone[worker] = merge([self._gone.get(worker, {}), counted])

    def snapshots(self) -> dict[int, Snapshot]:
        """Per worker everything counted in all its lives; gauges only of a living one, and
        ``headrace_engine_ready`` 0 for one that is gone."""
        out = {
            worker: merge([old, {"headrace_engine_ready": [[[], 0]]}]) for worker, old in self._gone.items()
        }
        for worker, (_, snapshot) in self._living.items():
            out[worker] = merge([self._gone.get(worker, {}), snapshot])
        return dict(sorted(out.items()))


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(
    config: EngineConfig, workers: Mapping[int, Snapshot], gateway: Snapshot, extra: Iterable[Family] = ()
) -> bytes:
    """The text of ``/metrics`` (``text/plain; version=0.0.4``): workers' snapshots by worker number,
    the gateway's own, and further families, say of the process.

    Our own lines are written here and not by prometheus_client: a page has thousands of them, and the
    loop that makes it also relays tokens (docs/lab-log.md).
    """
    sources: list[tuple[_Key, Snapshot]] = [
        ((config.model, str(w)), snapshot) for w, snapshot in workers.items()
    ]
    sources.append(((config.model,), gateway))
    lines: list[str] = []
    for metric in METRICS.values():
        present = [(own, source[metric.name]) for own, source in sources if metric.name in source]
        if present:
            lines += _lines(metric, metric.bounds(config), present)
    page = "".join(f"{line}\n" for line in lines).encode()
    return page + generate_latest(_Families(extra))


def _lines(metric: Metric, bounds: tuple[float, ...], present: list[tuple[_Key, list[Any]]]) -> Iterator[str]:
    name = metric.name
    yield f"# HELP {name} {_escaped(metric.help)}"
    yield f"# TYPE {name} {metric.kind}"
    edges = (*(repr(float(bound)) for bound in bounds), "+Inf")
    for own, series in present:
        names = ("model", "worker")[: len(own)] + tuple(metric.labels)
        for key, value in series:
            labels = _labels(names, (*own, *key))
            if metric.kind == "histogram":
                total, counts = value
                yield from _buckets(name, labels, edges, counts)
                yield f"{name}_sum{{{labels}}} {float(total)!r}"
            else:
                yield f"{name}{{{labels}}} {float(value)!r}"


def _buckets(name: str, labels: str, edges: tuple[str, ...], counts: list[int]) -> Iterator[str]:
    below = 0
    for edge, count in zip(edges, counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels},le="{edge}"}} {below}'
    yield f"{name}_count{{{labels}}} {below}"


@lru_cache(maxsize=4096)
def _labels(names: _Key, values: _Key) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
