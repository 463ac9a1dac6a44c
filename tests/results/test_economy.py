"""cost_per_good and energy_per_good (MEASUREMENT C43)."""

from __future__ import annotations

from typing import Any

import pytest

from results.economy import ENERGY, POWER, REPLICAS, economy, energy_used, replica_seconds
from results.gates import GateError, parse_gate
from results.judging import SECOND, ClassGoal, Judging
from results.record import Outcome, Record
from results.run import RunData, frame, scrape_frame
from results.summary import judge
from results.view import View


def a_run(good: int = 4, late: int = 1, **judging: Any) -> RunData:
    """Window of 10 s; requests that end in it within their bound of 100 ms, and some that do not."""
    ttfts = [50] * good + [500] * late
    records = [answered(id, ttft) for id, ttft in enumerate(ttfts)]
    goals = {"default": ClassGoal(slo={"ttft": 0.1})}
    return RunData(Judging("made-up", 1, goals, (0, 10 * SECOND), cache="as_is", **judging), frame(records))


def answered(id: int, ttft_ms: int) -> Record:
    record = Record(id, "default", "window", Outcome.COMPLETED, n_out=1, event_us=[0])
    record.due = record.start = record.sent = id * SECOND // 2
    record.first_token = record.last_token = record.start + ttft_ms * SECOND // 1000
    record.terminal = record.closed = record.last_token
    return record


def sample(t: float, name: str, value: float, **labels: str) -> dict[str, Any]:
    return {"t": round(t * SECOND), "target": "t", "name": name, "labels": labels, "value": value}


def replicas(t: float, **states: float) -> list[dict[str, Any]]:
    return [sample(t, REPLICAS, n, model="m", state=state) for state, n in states.items()]


def test_cost_is_all_replicas_over_good_requests_only() -> None:
    """Two replicas for 10 s at 0.5 a second, four good requests: 2.5 each, whatever else completed."""
    data = a_run(price=0.5, replicas=2)
    found = economy(data, View.of(data))
    assert found.replica_s == 20.0
    assert found.cost_per_good.value == pytest.approx(2.5)
    interval = found.cost_per_good.interval
    assert interval is not None
    assert interval.low is not None
    assert interval.low < 2.5
    assert judge(data)["economy"]["cost_per_good"] == found.cost_per_good.value


def test_replicas_count_while_they_load_idle_and_drain() -> None:
    """What the target tells holds until it tells otherwise; a process that is gone is not paid for."""
    data = a_run(replicas=7)
    rows = [*replicas(-1, in_rotation=2, gone=0), *replicas(4, in_rotation=1, gone=1)]
    rows += [*replicas(6, in_rotation=1, warming=1, gone=0), *replicas(9, in_rotation=1, draining=1)]
    data.scrapes = scrape_frame(rows)
    assert replica_seconds(data) == pytest.approx(4 * 2 + 2 * 1 + 3 * 2 + 1 * 2)
    data.scrapes = scrape_frame(replicas(5, in_rotation=3))
    assert replica_seconds(data) == pytest.approx(30.0), "before its first word it is taken to be the same"


def test_energy_is_the_integral_over_the_window_of_all_devices() -> None:
    """Counters are read between two scrapes; one that begins again counts on; gauges are W."""
    data = a_run()
    counter = [sample(t, ENERGY, 100 + 10 * t, device="package-0") for t in (-1.0, 0.5, 5.5, 10.5)]
    counter += [sample(-1, ENERGY, 900, device="gpu0"), sample(5, ENERGY, 0, device="gpu0")]
    counter += [sample(10, ENERGY, 50, device="gpu0")]
    data.scrapes = scrape_frame(counter)
    energy, devices = energy_used(data)
    assert energy.value == pytest.approx(10 * 10 + 50)
    assert devices == ("gpu0", "package-0")
    data.scrapes = scrape_frame([sample(t, POWER, 20 + t, device="0") for t in (-1.0, 11.0)])
    assert energy_used(data)[0].value == pytest.approx(250.0)
    assert economy(data, View.of(data)).energy_per_good.value == pytest.approx(62.5)


def test_what_is_not_known_says_why() -> None:
    """No price, no reading, a reading of a part only, nothing good."""
    block = judge(a_run())["economy"]
    assert block["cost_per_good"] is block["energy_per_good"] is None
    assert block["cost_per_good_reason"] == "the scenario has no target.price"
    assert block["energy_per_good_reason"] == "nothing told how much power the target draws"
    assert judge(a_run(virtual=True))["economy"]["energy_j_reason"] == "virtual time has no devices"
    told = a_run()
    told.manifest = {"power": {"devices": [], "reason": "package-0: Permission denied"}}
    assert judge(told)["economy"]["energy_j_reason"] == "package-0: Permission denied"
    part = a_run()
    part.scrapes = scrape_frame([sample(t, ENERGY, t, device="gpu0") for t in (0, 1, 2)])
    assert energy_used(part)[0].reason == "power was not read through the whole window"
    none_good = judge(a_run(good=0, price=1.0))["economy"]
    assert none_good["cost_per_good_reason"] == "no good request"


def test_gates_on_it_are_of_everything() -> None:
    """A gate decides by the interval; a part of the requests has no price of its own."""
    data = a_run(price=0.5, replicas=2, gates=("cost_per_good < 50", "energy_per_good < 3"))
    gates = judge(data)["gates"]
    assert [gate["verdict"] for gate in gates] == ["PASS", "INCONCLUSIVE"]
    assert gates[0]["value"] == pytest.approx(2.5)
    for text in (
        "chat.cost_per_good < 1",
        "cost_per_good during crash < 1",
        "all{turn=0}.energy_per_good < 1",
    ):
        with pytest.raises(GateError, match="of the whole window"):
            parse_gate(text, ["chat"], ["crash"])
