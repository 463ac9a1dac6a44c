"""Meters, which count what the table of metrics names (engine.metrics).

Code counts on a ``Meter`` by full name, so that a name can be searched for from the dashboard to the line
that feeds it; a name or label that is not in the table is a KeyError.

Workers send cumulative snapshots with their heartbeats; engine/exposition.py makes one page of them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from engine.config import EngineConfig
from engine.metrics import METRICS, Part

Snapshot = dict[str, Any]
"""Cumulative values, plain enough for msgpack: ``{name: [[label values, value], ..]}``; a histogram's
value is ``[sum, [count per bucket, last = +Inf]]``, its bounds are the layout of the run (O5)."""

_Key = tuple[str, ...]


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Meter:
    """Counts what the table's metrics of some parts name: ``Meter(config, "engine")`` in a worker,
    ``Meter(config, "router", "fleet")`` at the gateway.

    Labels are keyword arguments; ``class_`` stands for ``class``. Unknown names and labels raise
    KeyError. Not thread-safe: the owner calls ``snapshot`` where it counts.
    """

    def __init__(self, config: EngineConfig, *parts: Part) -> None:
        known = {
            "class": tuple(config.classes),
            "worker": tuple(str(worker) for worker in range(config.workers)),
        }
        self._arguments: dict[str, tuple[str, ...]] = {}
        self._values: dict[str, dict[_Key, float]] = {}
        self._histograms: dict[str, dict[_Key, _Histogram]] = {}
        self._bounds: dict[str, tuple[float, ...]] = {}
        for metric in METRICS.values():
            if metric.part not in parts:
                continue
            self._arguments[metric.name] = tuple(
                "class_" if label == "class" else label for label in metric.labels
            )
            keys = _product([values or known.get(label, ()) for label, values in metric.labels.items()])
            if metric.kind == "histogram":
                bounds = self._bounds[metric.name] = metric.bounds(config)
                self._histograms[metric.name] = {key: _Histogram(bounds) for key in keys}
            else:
                self._values[metric.name] = dict.fromkeys(keys, 0)

    def inc(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter. ``amount`` is never negative (E55)."""
        if amount < 0:
            raise ValueError(f"{name}: a counter cannot go down by {-amount}")
        values, key = self._values[name], self._key(name, labels)
        values[key] = values.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._values[name][self._key(name, labels)] = value

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Add a value to a histogram, so many times, in its unit (seconds, tokens, rows)."""
        series, key = self._histograms[name], self._key(name, labels)
        histogram = series.get(key)
        if histogram is None:
            histogram = series[key] = _Histogram(self._bounds[name])
        histogram.add(value, times)

    def get(self, name: str, **labels: str) -> float:
        """The present value of a counter or gauge, 0 if never touched."""
        return self._values[name].get(self._key(name, labels), 0)

    def snapshot(self) -> Snapshot:
        """All values so far, as a fresh plain dict."""
        out: Snapshot = {
            name: [[list(key), value] for key, value in series.items()]
            for name, series in self._values.items()
        }
        for name, histograms in self._histograms.items():
            out[name] = [[list(key), [h.sum, list(h.counts)]] for key, h in histograms.items()]
        return out

    def _key(self, name: str, labels: dict[str, str]) -> _Key:
        arguments = self._arguments[name]
        if len(labels) != len(arguments):
            raise KeyError(f"{name} has the labels {arguments}, not {tuple(labels)}")
        return tuple([labels[argument] for argument in arguments])


def _product(sets: list[tuple[str, ...]]) -> list[_Key]:
    keys: list[_Key] = [()]
    for values in sets:
        keys = [(*key, value) for key in keys for value in values]
    return keys
