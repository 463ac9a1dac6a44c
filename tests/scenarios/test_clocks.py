"""Gates and objectives by a clock that cannot tell them are errors of the file (MEASUREMENT C17)."""

from __future__ import annotations

import pytest

from scenarios.load import ScenarioError, parse
from scenarios.parts import goals

TEXT = """# Does the clock fit?
headrace: 1
target: {{engine: {{model: simulated}}}}
classes:
  chat: {{{chat}}}
  batch: {{}}
phases: {{window: 30s}}
load:
  - {{class: chat, arrival: {arrival}, workload: {{type: fixed, input: 50, output: 5}}}}
  - {{class: batch, arrival: {{type: constant, rate: 1/s}}, workload: {{type: fixed, input: 50, output: 5}}}}
gates: ["{gate}"]
"""
POISSON = "{type: poisson, rate: 2/s}"
USERS = "{type: concurrency, users: 4}"


@pytest.mark.parametrize(
    ("chat", "arrival", "gate", "said"),
    [
        (
            "",
            USERS,
            "chat.ttft_sched.p90 < 1s",
            "s.yaml:11: gates.0: gate 'chat.ttft_sched.p90 < 1s': ttft_sched says",
        ),
        ("", USERS, "chat.ttft.p90 < 1s", None),
        ("", USERS, "ttft_sched.p90 < 1s", None),
        ("", POISSON, "chat.ttft.p90 < 1s", None),
        ("cap: {in_flight: 4}", POISSON, "chat.ttft.p90 < 1s", "use ttft_sched"),
        ("cap: {in_flight: 4}", POISSON, "e2e.p90 < 1s", "cap of class chat; use e2e_sched"),
        ("cap: {in_flight: 4}", POISSON, "chat.ttft_sched.p90 < 1s", None),
        ("cap: {in_flight: 4}, slo: {ttft: 1s}", POISSON, "planned > 0", "classes.chat.slo.ttft"),
        ("cap: {in_flight: 4}, slo: {ttft_sched: 1s}", POISSON, "planned > 0", None),
    ],
)
def test_gates_by_the_wrong_clock_are_refused(chat: str, arrival: str, gate: str, said: str | None) -> None:
    """Before anything is sent, with the line and the metric to use instead."""
    text = TEXT.format(chat=chat, arrival=arrival, gate=gate)
    if said is None:
        parse(text, "s.yaml")
        return
    with pytest.raises(ScenarioError) as refusal:
        parse(text, "s.yaml")
    (line,) = refusal.value.errors
    assert said in line


def test_the_judge_is_told_of_loops_and_caps() -> None:
    """A class is a closed loop if any of its load is; its cap is its own."""
    closed = goals(parse(TEXT.format(chat="", arrival=USERS, gate="planned > 0"), "s.yaml"))
    assert (closed["chat"].open_loop, closed["batch"].open_loop) == (False, True)
    capped = goals(
        parse(TEXT.format(chat="cap: {in_flight: 4}", arrival=POISSON, gate="planned > 0"), "s.yaml")
    )
    assert (capped["chat"].cap, capped["batch"].cap) == (4, None)
