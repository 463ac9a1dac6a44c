"""Engine case C24: thousands of mixed requests through a whole engine, and nothing is left of them.

Every two policies and features meet in some run. 20,000 requests in one, and resident memory:
``python benchmarks/soak.py``.
"""

from __future__ import annotations

import pytest

from benchmarks.soak import FACTORS, Mix, pairwise, soak

REQUESTS = 2_000
MIXES = pairwise()


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_nothing_is_left(mix: Mix) -> None:
    """Drained at every idle moment; one end each; no invariant broken; misses and hits are the prompt."""
    report = soak(mix, REQUESTS, waves=8, seed=1)
    print(f"seed 1: {report}")
    assert report.problems == []
    assert report.used == [0] * 8
    assert report.submitted == REQUESTS == sum(report.ends.values()) + sum(report.rejected.values())
    assert {"length", "cancelled", "expired"} <= report.ends.keys()
    assert "error" not in report.ends


def test_every_policy_is_among_them() -> None:
    """Each value of each factor, and the tight pool preempts where it may."""
    for name, values in FACTORS.items():
        assert {getattr(mix, name) for mix in MIXES} == set(values)
