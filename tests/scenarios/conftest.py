"""A scenario to break."""

from __future__ import annotations

import pytest

GOOD = """\
# What does this do?
headrace: 1
seed: 7
target:
  engine:
    model: simulated
    workers: 2
classes:
  chat:
    slo: {ttft_sched: 2s, itl: 250ms}
    deadline: 30s
  batch: {rank: 1}
phases: {warmup: 5s, window: 40s}
load:
  - class: chat
    arrival: {type: poisson, rate: 1.5/s}
    workload: {type: sessions, turns: 3, system: 400, user: 40, output: 32, think: 2s}
  - {class: batch, arrival: {type: constant, rate: 0.3/s}, workload: {type: fixed, input: 600, output: 48}}
faults:
  - {id: rush, type: burst, class: chat, at: 15s, for: 2s, rate: 8/s}
  - {id: hangup, type: cancel, class: chat, share: 10%, when: {decode: 5}}
  - {id: crash, type: kill_worker, worker: 1, at: 25s, when: {prefill: 1}}
gates:
  - attainment >= 90%
  - chat.ttft_sched.p90 during crash < 3s
"""


@pytest.fixture
def good() -> str:
    """A complete scenario as text."""
    return GOOD
