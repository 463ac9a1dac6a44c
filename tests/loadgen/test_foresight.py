"""Running out of descriptors and ports, known before it happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.foresight import (
    SPARE_DESCRIPTORS,
    Machine,
    Problem,
    foresee,
    in_flight_bounds,
    problems,
    this_machine,
)

S = 1_000_000_000


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(0, 20), st.integers(0, 5))
def test_the_most_in_the_air_is_what_is_due_within_one_timeout(
    dues: list[int], timeout: int, users: int
) -> None:
    """Counted instant by instant: whoever is due at d is given up at d + timeout."""
    sure, peak = in_flight_bounds((due * S for due in dues), timeout, users)
    burst = max((dues.count(due) for due in dues), default=0)
    held = max((sum(t - timeout < due <= t for due in dues) for t in dues), default=0)
    assert (sure, peak) == (max(burst, users), max(burst, held) + users)


def test_an_even_load_piles_up_for_one_timeout() -> None:
    """100/s with a total timeout of 120 s: 12,000 if the target stalls, 1 for sure."""
    assert in_flight_bounds(range(0, 600 * S, S // 100), 120.0) == (1, 12_000)


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
