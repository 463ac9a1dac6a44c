"""Running out of descriptors and ports, known before it happens."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import Concurrency, Constant
from loadgen.foresight import (
    SPARE_DESCRIPTORS,
    Machine,
    Problem,
    foresee,
    in_flight_bounds,
    problems,
    this_machine,
)
from loadgen.plan import Load, Phases, Plan, Shot
from loadgen.workload import Branches, Fixed, Sessions, Subagents
from loadgen.workload.waits import UniformTime

S = 1_000_000_000


def in_the_air(load: Load, timeout_s: float, load_s: float, users: int = 0) -> tuple[int, int]:
    """(surely, at most) of a plan of one load."""
    plan = Plan.make([load], Phases(window=load_s), 1)
    return in_flight_bounds(plan.shots, timeout_s, plan.phases.load_ns, users)


def first(id: int, due: int) -> Shot:
    return Shot(id, "c", "window", id, 0, (), 1, 1, due_ns=due * S)


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 20), st.integers(0, 5))
def test_the_most_in_the_air_is_what_is_due_within_one_timeout(
    dues: list[int], timeout: int, users: int
) -> None:
    """Counted instant by instant: whoever is due at d is given up at d + timeout."""
    shots = [first(id, due) for id, due in enumerate(dues)]
    burst = max((dues.count(due) for due in dues), default=0)
    held = max((sum(t - timeout < due <= t for due in dues) for t in dues), default=0)
    assert in_flight_bounds(shots, timeout, 61 * S, users) == (max(burst, users), held)


def test_an_even_load_piles_up_for_one_timeout() -> None:
    """100/s with a total timeout of 120 s: 12,000 if the target stalls, 1 for sure."""
    assert in_the_air(Load("c", Constant(100.0), Fixed(1, 1)), 120.0, 600.0) == (1, 12_000)


@pytest.mark.parametrize(
    ("turns", "think", "load_s", "most"),
    [
        (20, 0.0, 40.0, 5 * 40),  # all of them, to the end of the load
        (3, 0.0, 100.0, 5 * 3 * 4),
        (3, 2.0, 100.0, 5 * (3 * 4 + 2 * 2)),
        (3, 200.0, 100.0, 5 * 4),  # no later turn is ever due
    ],
)
def test_sessions_live_as_long_as_their_turns_take(
    turns: int, think: float, load_s: float, most: int
) -> None:
    """5 a second, each turn up to 4 s and the think times: one request of each may be in the air."""
    load = Load("c", Constant(5.0), Sessions(turns, 5, 5, 2, think))
    assert in_the_air(load, 4.0, load_s) == (1, most)


def test_branches_are_in_the_air_together() -> None:
    """Surely, if the answer that they wait for cannot come after the load; think times of their own and
    sub-agents part them."""
    forks = Sessions(3, 5, 5, 2, branches=Branches(1, 400))
    apart = replace(forks, think=UniformTime((0.0, 3.0)))
    assert in_the_air(Load("c", Constant(0.1), forks), 4.0, 9.0) == (400, 400)
    assert in_the_air(Load("c", Constant(0.1), forks), 10.0, 9.0) == (1, 400)
    assert in_the_air(Load("c", Constant(0.1), apart), 4.0, 9.0) == (1, 400)
    one = Sessions(3, 5, 5, 2, subagents=Subagents(1.0, 2, 5, 5, 2, 5))
    assert in_the_air(Load("c", Constant(0.1), one), 4.0, 9.0) == (1, 1)


def test_a_user_of_a_closed_loop_has_one_session_at_a_time() -> None:
    """However many are planned; with branches, as many requests as one session has."""
    loop = Concurrency(7, ramp_up=1.0)
    assert in_the_air(Load("c", loop, Fixed(1, 1)), 120.0, 10.0) == (1, 7)
    assert in_the_air(Load("c", loop, Fixed(1, 1)), 120.0, 10.0, users=7) == (7, 7)
    forks = Sessions(2, 5, 5, 2, branches=Branches(1, 3))
    assert in_the_air(Load("c", loop, forks), 120.0, 10.0) == (1, 21)


ROOMY = Machine(1 << 20, 60_000, 1 << 22)


def test_what_fits_is_no_problem() -> None:
    """Nor is what no limit is known for."""
    assert problems(ROOMY, 10_000, 10_000, 1, same_host=True) == []
    assert problems(Machine(), 10**7, 10**7, 1, same_host=True) == []


@pytest.mark.parametrize(
    ("machine", "processes", "what", "remedy"),
    [
        (Machine(descriptors=1024), 1, "files open in one load process", "ulimit -Hn"),
        (Machine(descriptors=600), 2, "files open in one load process", "more load processes"),
        (Machine(ports=900), 4, "connections to one address", "ip_local_port_range"),
        (Machine(room=900), 4, "files open on this machine", "fs.file-max"),
    ],
)
def test_too_much_for_sure_is_refused_and_perhaps_too_much_is_said(
    machine: Machine, processes: int, what: str, remedy: str
) -> None:
    """With what, the numbers and the remedy."""
    (refused,) = problems(machine, 5000, 1100, processes, same_host=False)
    (warned,) = problems(machine, 5000, 10, processes, same_host=False)
    assert (refused.sure, warned.sure) == (True, False)
    for problem, verb in ((refused, "the plan needs"), (warned, "if the target stalls")):
        assert problem.text.startswith(verb)
        assert what in problem.text
        assert remedy in problem.text
        allowed = machine.descriptors or machine.ports or machine.room
        assert f"{allowed} are possible" in problem.text


def test_the_bound_itself_still_fits() -> None:
    """One more does not."""
    machine = Machine(descriptors=1000 + SPARE_DESCRIPTORS)
    assert problems(machine, 2000, 2000, 2, same_host=False) == []
    assert [one.sure for one in problems(machine, 2001, 2001, 2, same_host=False)] == [True]


def test_a_target_on_this_machine_takes_files_too() -> None:
    """Each connection has two ends here, and the target holds all of them in one process perhaps."""
    assert problems(Machine(room=1000), 600, 600, 1, same_host=False) == []
    assert [one.sure for one in problems(Machine(room=1000), 600, 600, 1, same_host=True)] == [True]
    (problem,) = problems(Machine(descriptors=1000), 1200, 1200, 4, same_host=True)
    assert problem == Problem(
        False,
        "if the target stalls, the plan needs up to 1264 files open in the target, should it be one process"
        " with this limit, 1000 are possible: raise the hard limit of whoever starts it",
    )


def test_the_kernels_words_are_read(tmp_path: Path) -> None:
    """Reserved ports are no use; a machine that does not say has no known limit."""
    for name, text in {
        "net/ipv4/ip_local_port_range": "32768\t60999\n",
        "net/ipv4/ip_local_reserved_ports": "8080,40000-40009,60999-61010\n",
        "fs/file-nr": "1000\t0\t5000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = this_machine(tmp_path)
    assert (machine.ports, machine.room) == (28_232 - 11, 4000)
    assert this_machine(tmp_path / "nowhere").ports is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_the_limit_of_this_process_is_raised_before_it_is_judged() -> None:
    """A soft limit below the hard one is no problem; one above is told. In a process of its own."""
    script = (
        "import resource; from loadgen.foresight import foresee\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))\n"
        "few = [p for p in foresee(900, 900, 1, False) if 'load process' in p.text]\n"
        "many = [p for p in foresee(1000, 1000, 1, False) if 'load process' in p.text]\n"
        "print(len(few), [p.sure for p in many], resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0 [True] (1000, 1000)"


def test_this_machine_can_hold_a_few() -> None:
    """The whole way, on whatever this runs on."""
    assert foresee(10, 10, 1, same_host=True) == []
