"""Slices of requests along the closed list of dimensions (MEASUREMENT C45)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

UNKNOWN = "unknown"
LENGTH_EDGES = (0, 256, 1_000, 4_000, 16_000, 64_000, 256_000)
"""Tokens; buckets are [lo, hi)."""

Labels = NDArray[np.object_]


def tokens_text(n: int) -> str:
    """1,000 -> ``1k``; other numbers as they are."""
    return f"{n // 1000}k" if n >= 1000 and n % 1000 == 0 else str(n)


def length_bucket(n: float | None, edges: tuple[int, ...] = LENGTH_EDGES) -> str:
    """``256-1k`` for 300; ``256k-`` beyond the last edge; ``unknown`` for None or NaN."""
    if n is None or np.isnan(n):
        return UNKNOWN
    at = int(np.searchsorted(edges, n, side="right")) - 1
    low = tokens_text(edges[at])
    return f"{low}-{tokens_text(edges[at + 1])}" if at + 1 < len(edges) else f"{low}-"


def hit_bucket(read: float, total: float) -> str:
    """Cached share of a prompt: ``0``, ``0-50%``, ``50-90%``, ``90-100%``."""
    if np.isnan(read) or np.isnan(total) or total <= 0:
        return UNKNOWN
    share = read / total
    return "0" if read == 0 else "0-50%" if share < 0.5 else "50-90%" if share < 0.9 else "90-100%"


def _lengths(column: str) -> Callable[[pd.DataFrame], list[str]]:
    names = np.array([length_bucket(edge) for edge in LENGTH_EDGES] + [UNKNOWN], dtype=object)

    def labels(data: pd.DataFrame) -> list[str]:
        n = data[column].to_numpy(dtype=np.float64)
        at = np.searchsorted(LENGTH_EDGES, n, side="right") - 1
        result: list[str] = names[np.where(np.isnan(n), len(LENGTH_EDGES), at)].tolist()
        return result

    return labels


def _texts(column: str) -> Callable[[pd.DataFrame], list[str]]:
    def labels(data: pd.DataFrame) -> list[str]:
        if column not in data:
            return [UNKNOWN] * len(data)
        return [UNKNOWN if pd.isna(v) or v == "" else str(v) for v in data[column]]

    return labels


def _worker(data: pd.DataFrame) -> list[str]:
    if "worker" not in data:
        return [UNKNOWN] * len(data)
    return [UNKNOWN if pd.isna(w) else str(int(w)) for w in data["worker"]]


DIMS: dict[str, Callable[[pd.DataFrame], list[str]]] = {
    "in": _lengths("n_in"),
    "out": _lengths("n_out"),
    "hit": lambda d: [hit_bucket(r, t) for r, t in zip(d["cache_read"], d["prompt_total"], strict=True)],
    "tier": _texts("tier"),
    "turn": lambda d: ["first" if t == 0 else "later" for t in d["turn"]],
    "rank": _texts("rank"),
    "tenant": _texts("tenant"),
    "route": _texts("route"),
    "worker": _worker,
    "adapter": lambda d: ["none" if pd.isna(a) or a == "" else str(a) for a in d["adapter"]],
    "finish": _texts("finish"),
}


def labels(data: pd.DataFrame, dim: str) -> Labels:
    """The slice of each row along ``dim``."""
    return np.array(DIMS[dim](data), dtype=object)


def select(data: pd.DataFrame, where: Mapping[str, str]) -> NDArray[np.bool_]:
    """Rows in all the given slices. ``turn`` also takes a number: turn=0 is the first."""
    mask = np.ones(len(data), dtype=bool)
    for dim, wanted in where.items():
        if dim == "turn" and wanted.isdigit():
            mask &= (data["turn"] == int(wanted)).to_numpy(dtype=bool)
        elif dim in ("in", "out"):
            mask &= _between(data[f"n_{dim}"].to_numpy(dtype=np.float64), wanted)
        else:
            mask &= labels(data, dim) == wanted
    return mask


def parse_bucket(text: str) -> tuple[float, float] | None:
    """[lo, hi) of ``1k-4k`` or ``64k-``; None if it is no bucket."""
    low, _, high = text.partition("-")
    try:
        return _tokens(low), _tokens(high) if high else float("inf")
    except ValueError:
        return None


def _tokens(text: str) -> float:
    return float(text[:-1]) * 1000 if text.endswith("k") else float(text)


def _between(values: NDArray[np.float64], bucket: str) -> NDArray[np.bool_]:
    if bucket == UNKNOWN:
        return np.isnan(values)
    bounds = parse_bucket(bucket)
    assert bounds is not None, f"bad length bucket {bucket}"
    result: NDArray[np.bool_] = (values >= bounds[0]) & (values < bounds[1])
    return result
