"""The doctor: how it searches, whom it blames, what it says. Steps are made up; one runs for real."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import doctor as doctoring
from headrace.capacity import Capacity, Search, Step, capacity, judge
from headrace.doctor import Diagnosis, DoctorOptions, facts_of, placed, remedies, searched, verdict
from headrace.errors import UsageFailed
from headrace.machine import Machine, machine
from headrace.probe import ProbeFailed, prevented, probe
from headrace.probed import Order, events_within, measured
from loadgen.reference.answers import End
from loadgen.reference.group import ReferenceServer
from loadgen.reference.log import Entry
from loadgen.reference.script import Script
from loadgen.sockets import kernel_stamps_here
from results.record import Outcome, Record
from results.recordfile import frame

MS = 1_000_000
GOOD = Step(
    100.0,
    delivered=100.0,
    planned=200,
    ttft_p99=0.2,
    token_p99=0.3,
    lateness_p99=0.1,
    lateness_least=0.0,
    server_late_p99=0.2,
    client_cpu=0.85,
    server_cpu=0.6,
)
FACTS = Machine(2, (0, 1), "tsc", True, (1024, 20_000), (32_768, 60_999), "2.13.0+cpu", (0.1, 0.1, 0.1))


def run(search: Search, curve: Callable[[float, int], Step]) -> list[Step]:
    """The whole search over a made-up machine; the curve is told how many steps there were."""
    steps: list[Step] = []
    while (rate := search.next(steps)) is not None:
        steps.append(curve(rate, len(steps)))
        assert len(steps) < 60, "the search does not end"
    return steps


def limited(capacity: float, by: str = "client") -> Callable[[float, int], Step]:
    """Holds up to ``capacity`` and is far off beyond."""

    def curve(rate: float, _: int) -> Step:
        if rate <= capacity:
            return replace(GOOD, rate=rate)
        miss = {"token_p99": 40.0} if by == "client" else {"server_late_p99": 40.0, "server_cpu": 0.99}
        return replace(GOOD, rate=rate, **miss)

    return curve


@given(st.floats(10, 64_000), st.sampled_from([100.0, 500.0, 3000.0]))
def test_a_machine_with_a_limit_is_bracketed(limit: float, start: float) -> None:
    """The bracket is at most 15 % wide, the limit is in it, and no rate is tried twice."""
    search = Search(start=start)
    steps = run(search, limited(limit))
    held, missed = search.bracket(steps)
    rates = [step.rate for step in steps]
    assert len(rates) == len(set(rates))
    assert held is None or held <= limit
    assert missed is None or missed > limit
    if held is None:
        assert limit < 2 * search.least
    elif missed is None:
        assert held == search.most
    else:
        assert missed / held <= search.width or held < 20
    assert len(steps) <= 14


@given(st.floats(50, 20_000), st.data())
def test_narrow_misses_are_tried_again(limit: float, data: st.DataObject) -> None:
    """Hiccups that never come twice in a row at one rate do not lower what is found."""
    hiccups: list[float] = []

    def curve(rate: float, _: int) -> Step:
        if rate <= limit and rate not in hiccups and data.draw(st.booleans()):
            hiccups.append(rate)
            return replace(GOOD, rate=rate, ttft_p99=1.5)
        return limited(limit)(rate, 0)

    search = Search()
    held, _ = search.bracket(run(search, curve))
    undisturbed, _ = search.bracket(run(search, limited(limit)))
    assert held == undisturbed


def test_what_holds_above_a_miss_is_luck() -> None:
    """The lowest confirmed miss bounds the answer."""
    steps = [replace(GOOD, rate=rate) for rate in (500.0, 2000.0)]
    steps.append(replace(GOOD, rate=1000.0, token_p99=50.0))
    assert Search().bracket(steps) == (500.0, 1000.0)


@pytest.mark.parametrize(
    ("change", "limit", "words"),
    [
        ({"ttft_p99": 1.2}, "client", "TTFT error p99 1.20 ms"),
        ({"token_p99": 3.0}, "client", "token error p99 3.00 ms"),
        ({"lateness_p99": 2.0}, "client", "lateness of sends p99 2.00 ms"),
        ({"lateness_least": -0.1}, "client", "before it was due"),
        ({"lost": 3}, "client", "3 requests or tokens lost"),
        ({"early": 1}, "client", "clock fault"),
        ({"token_p99": 3.0, "client_cpu": 0.97}, "client", "used 97% of its core"),
        ({"server_late_p99": 5.0, "server_cpu": 0.9}, "server", "reference server wrote late: p99 5.00 ms"),
        ({"server_cpu": 0.99}, "server", "reference server used 99%"),
        ({"token_p99": 9.0, "server_cpu": 0.99}, "server", "reference server used 99%"),
        ({"token_p99": 9.0, "client_cpu": 0.3}, "machine", "token error"),
        (
            {"server_late_p99": 9.0, "client_cpu": 0.3, "others_cpu": 1.2},
            "machine",
            "other processes used 1.2",
        ),
        ({"ttft_p99": 2.0, "steal": 0.2}, "client", "20% of the machine's CPU time was stolen"),
        ({"lateness_p99": 2.0, "client_cpu": 0.7, "clerk_cpu": 0.28}, "client", "70% and 28% of their core"),
        ({"lateness_p99": 2.0, "client_cpu": 0.5, "clerk_cpu": 0.1}, "machine", "lateness of sends"),
        (
            {"lateness_p99": 2.0, "client_cpu": 0.9, "bodies_late": 7},
            "client",
            "7 requests waited for their body",
        ),
        ({"prevented": "fds", "why": "too few"}, "fds", "too few"),
    ],
)
def test_a_miss_names_who_missed_and_by_what(change: dict[str, object], limit: str, words: str) -> None:
    """Each bound alone makes a step miss; the server's misses are never blamed on the client."""
    judged = judge(replace(GOOD, **change), 1.0)  # type: ignore[arg-type]
    assert (judged.holds, judged.limit) == (False, limit)
    assert words in "; ".join(judged.reasons)


def test_a_step_at_its_bounds_holds() -> None:
    """Exactly the bound is within it, and values that could not be measured miss nothing."""
    at_bound = replace(GOOD, ttft_p99=1.0, token_p99=1.0, lateness_p99=1.0, server_late_p99=1.0)
    assert judge(at_bound, 1.0).holds
    assert judge(Step(5.0), 1.0).holds


def _found(curve: Callable[[float, int], Step]) -> Capacity:
    return capacity(run(Search(), curve), Search())


def _diagnosis(found: Capacity, facts: Machine = FACTS, *, cut_short: bool = False) -> Diagnosis:
    return Diagnosis(facts, found, 5.0, 50.0, 0.0, cut_short)


def test_the_verdict_is_honest_about_the_server() -> None:
    """Limited by the server: the client's own limit is said to be unknown, and the remedy is the server's."""
    diagnosis = _diagnosis(_found(limited(1500, "server")))
    assert "reference server was at its limit first" in verdict(diagnosis)
    assert "own is not known" in verdict(diagnosis)
    assert "--server-processes" in remedies(diagnosis)[0]
    assert diagnosis.exit_code == 0


def test_the_verdict_names_rate_tokens_and_reason() -> None:
    """Limited by the client."""
    diagnosis = _diagnosis(_found(limited(1500)))
    rate = diagnosis.found.rate
    assert rate is not None
    assert f"{rate:,.0f} streams/s ({rate * 50:,.0f} tokens/s)" in verdict(diagnosis)
    assert "certified token error p99 40.00 ms" in verdict(diagnosis)
    assert "--processes 2" in remedies(diagnosis)[0]
    said = json.loads(json.dumps(diagnosis.as_dict()))
    assert (said["rate"], said["capacity"]["limit"], said["exit"]) == (rate, "client", 0)
    assert said["machine"]["torch"] == "2.13.0+cpu"


def test_nothing_held_is_exit_3_with_the_reason() -> None:
    """No rate at all."""
    diagnosis = _diagnosis(_found(limited(0)))
    assert diagnosis.exit_code == 3
    assert "No rate was held" in verdict(diagnosis)


def test_an_unlimited_machine_is_not_given_a_limit() -> None:
    """Up to the highest rate that is tried, or in the time there was."""
    assert "no limit was found" in verdict(_diagnosis(_found(limited(1e9))))
    found = capacity([replace(GOOD, rate=500.0)], Search())
    assert "in the time given" in verdict(_diagnosis(found, cut_short=True))


def test_the_budget_ends_the_search_with_what_is_known() -> None:
    """No step begins that could not end in time; the first one is always tried."""
    clock = [0.0]

    def try_rate(rate: float) -> Step:
        clock[0] += doctoring.STEP_S
        return limited(1e9)(rate, 0)

    for budget, tried in [(1.0, 1), (25.0, 3)]:
        clock[0] = 0.0
        lines: list[str] = []
        steps, cut = searched(DoctorOptions(budget=budget), try_rate, lines.append, lambda: clock[0])
        assert (len(steps), cut, len(lines)) == (tried, True, tried)
        assert clock[0] <= max(budget, doctoring.STEP_S)


@pytest.mark.parametrize(
    "options", [{"bound": 0.0}, {"budget": -1.0}, {"start": 0.0}, {"processes": 0}, {"server_processes": 0}]
)
def test_senseless_options_are_usage_errors(options: dict[str, float]) -> None:
    """Exit 2, before anything is started."""
    with pytest.raises(UsageFailed):
        DoctorOptions(**options)  # type: ignore[arg-type]


def test_server_and_client_get_cores_of_their_own_where_there_are_some() -> None:
    """One core: nobody is pinned, as they would share it anyway."""
    assert placed((0, 1), 1) == ((1,), (0,))
    assert placed((2, 3, 5, 7), 2) == ((5, 7), (2, 3))
    assert placed((0,), 1) == ((), ())
    assert placed((0, 1), 2) == ((), ())


@pytest.mark.parametrize(
    ("facts", "limit", "words"),
    [
        (replace(FACTS, fds=(100, 200)), "fds", "at most 200"),
        (replace(FACTS, ports=(40_000, 40_099)), "ports", "there are 100"),
    ],
)
def test_what_would_run_out_is_predicted(facts: Machine, limit: str, words: str) -> None:
    """A step that needs more descriptors or ports than there are is not tried."""
    order = Order.poisson(1000.0, Script())
    step = prevented(order, facts)
    assert step is not None
    assert step.prevented == limit
    assert words in (step.why or "")
    assert prevented(order, FACTS) is None
    named = {"fds": "ulimit", "ports": "ip_local_port_range"}[limit]
    assert any(named in advice for advice in remedies(_diagnosis(capacity([step], Search()), facts)))


def test_the_machine_is_described() -> None:
    """Every fact has words, whatever this machine is; the build of torch is told without importing it."""
    facts = machine()
    assert facts.usable_cores
    assert facts.kernel_stamps is kernel_stamps_here()
    told = facts_of(_diagnosis(_found(limited(700)), facts))
    assert all(told.values())
    assert {"cores", "clock source", "kernel receive stamps", "torch", "CPU steal meanwhile"} <= set(told)
    assert json.dumps(facts.as_dict())


# --- a step from its files


def _record(id: int, due: int, first: int | None, *, phase: str = "window") -> Record:
    done = first is not None
    return Record(
        id,
        "probe",
        phase,
        Outcome.COMPLETED if done else Outcome.RESET,
        request_id=f"t-{id}",
        due=due,
        start=due + 100_000,
        first_token=first,
        last_token=None if first is None else first + 2 * MS,
        terminal=None if first is None else first + 2 * MS,
        event_us=[0, 1000, 2000] if done else [],
    )


def _entry(record: Record, t0: int, late: int = 50_000) -> Entry:
    assert record.first_token is not None
    assert record.due is not None
    stamps = np.array([t0 + record.first_token + us * 1000 - 10_000 for us in record.event_us], np.int64)
    lates = np.full(len(stamps), late, np.uint32)
    read = t0 + record.due + 200_000
    return Entry(record.request_id, 0, 0, read, None, 200, End.WHOLE, False, "", stamps, lates)


def test_a_step_is_measured_in_its_window_and_loses_nothing_silently() -> None:
    """Errors and lateness of what was due in the window, losses of all, events by their times."""
    order = Order.poisson(2.0, Script(), window=1.0, warmup=1.0, tokens=3)
    t0, second = 10**12, 1000 * MS
    records = [
        _record(0, 0, 50 * MS, phase="warmup"),
        _record(1, second, second + 50 * MS),
        _record(2, second + 5 * MS, 2 * second - MS),  # its last event comes after the window
        _record(3, second + 9 * MS, None),
    ]
    log = [_entry(record, t0) for record in records if record.first_token is not None]
    plan = replace(order.plan(), shots=order.plan().shots[:1] * 5)
    signals = [{"cpu_ratio": 0.5, "steal_ratio": 0.0, "stamp": "kernel"}]
    step, certificate = measured(order, plan, frame(records), log, t0, signals)
    assert certificate.requests == 2
    assert step.planned == 5
    assert step.lost == 2  # one reset, one without a record
    assert step.delivered == 1.0
    assert step.token_p99 == pytest.approx(0.01)
    assert step.lateness_p99 == pytest.approx(0.1)
    assert step.server_late_p99 == pytest.approx(0.05)
    assert events_within(frame(records), second, 2 * second) == 4
    assert step.us_per_event == pytest.approx(0.5 * 1e6 / 4)


@pytest.mark.e2e
def test_a_real_step_certifies_our_client(tmp_path: Path) -> None:
    """Load process and reference server on this machine: every token is there and stamped after its write."""
    script = Script(ttft=0.02, itl=0.005)
    order = Order.poisson(40.0, script, window=1.0, warmup=0.2, cooldown=0.1, tokens=10)
    with ReferenceServer(script) as server:
        probed = asyncio.run(probe(order, server, server.tail(), tmp_path))
    assert probed.step.lost == 0
    assert probed.step.early == 0
    assert probed.certificate.exact
    assert probed.step.lateness_least is not None
    assert probed.step.lateness_least >= 0
    assert probed.certificate.token.n > 100
    assert probed.step.client_cpu is not None
    assert probed.peak_bytes is not None


@pytest.mark.e2e
def test_a_step_that_cannot_begin_says_why(tmp_path: Path) -> None:
    """Nobody listens: the load process' own words come through."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    gone = ReferenceServer(Script(), port=port)
    with pytest.raises(ProbeFailed, match="cannot connect"):
        asyncio.run(probe(Order.poisson(5.0, Script()), gone, None, tmp_path))
