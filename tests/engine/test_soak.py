"""Engine case C24: thousands of mixed requests through a whole engine, and nothing is left of them.

Every two policies and features meet in some run; the first ones, in which each is met once, have 2,000
requests and the others fewer. With so many in all: ``HEADRACE_SOAK=2000 pytest tests/engine/test_soak.py``.
With 20,000 in one, and a look at resident memory: ``python -m benchmarks.soak``.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.mixes import FACTORS, Mix, pairwise
from benchmarks.soak import soak
from engine.fleet.backend import Ask
from engine.model.adapter import adapter_facts
from engine.request import Request
from tests.engine.core.oracle import Teacher

MANY = 2_000
FEW = int(os.environ.get("HEADRACE_SOAK", "640"))
SEED = 1
MIXES = pairwise()


def first_of_all() -> int:
    """So many of the mixes until every value has been met."""
    values = {(name, value) for name, values in FACTORS.items() for value in values}
    for count, mix in enumerate(MIXES, start=1):
        values -= {(name, getattr(mix, name)) for name in FACTORS}
        if not values:
            return count
    raise AssertionError(f"never met: {values}")


@pytest.mark.parametrize(
    ("mix", "requests"),
    [(mix, MANY if index < first_of_all() else FEW) for index, mix in enumerate(MIXES)],
    ids=str,
)
def test_nothing_is_left(mix: Mix, requests: int) -> None:
    """Drained at every idle moment; one end each; no invariant broken; misses and hits are the prompt; every
    text, as far as it came, is what the request alone gives."""
    teacher = Teacher(4096)

    def judge(ask: Ask, choice: int, text: list[int]) -> bool:
        digest = ask.adapter and adapter_facts(f"/nowhere/{ask.adapter}", None, 64).digest
        alone = Request(1, ask.tokens, b"", (), len(text), sampling=ask.sampling, n=ask.n, adapter=digest)
        return teacher.text(alone, choice, len(text)) == text

    report = soak(mix, requests, waves=8, seed=SEED, judge=judge)
    print(f"seed {SEED}: {report}")
    assert report.problems == []
    assert report.used == [0] * 8
    assert report.used_slope == 0
    assert report.submitted == requests == sum(report.ends.values()) + sum(report.rejected.values())
    assert {"length", "cancelled", "expired"} <= report.ends.keys()
    assert "error" not in report.ends


def test_every_policy_is_among_them() -> None:
    """Each value of each factor, soon."""
    assert first_of_all() < len(MIXES) / 2
