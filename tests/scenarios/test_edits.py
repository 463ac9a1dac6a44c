"""``--set`` and the ``virtual`` block change what they name, and nothing else."""

from __future__ import annotations

from loadgen.arrivals import Poisson
from scenarios.load import parse

SHARED = """
headrace: 1
seed: 7
target: {engine: {model: simulated, memory: {kv_blocks: 4096}}}
classes: {chat: {slo: {e2e: 5s}}, docs: {slo: {e2e: 5s}}}
phases: {warmup: 0s, window: 5s, drain: 5s}
load:
  - &one {class: chat, arrival: &a {type: poisson, rate: 1/s}, workload: {type: fixed, input: 50, output: 4}}
  - {class: docs, arrival: *a, workload: {type: fixed, input: 50, output: 4}}
  - *one
gates: ["attainment >= 90%"]
"""


def test_an_edit_behind_an_alias_is_one_of_that_place() -> None:
    """Else a sweep over the rate of one class would set that of others too."""
    scenario = parse(SHARED, "s.yaml", ["load.0.arrival.rate=9/s", "load.2.class=docs"])
    assert [load.arrival for load in scenario.load] == [Poisson(9.0), Poisson(1.0), Poisson(1.0)]
    assert [load.class_ for load in scenario.load] == ["chat", "docs", "docs"]
