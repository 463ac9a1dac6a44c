"""The plan: drawn from one seed, fixed before time zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from loadgen.accounts import unaccounted
from loadgen.arrivals import Constant, Poisson
from loadgen.demand import demand
from loadgen.plan import Load, Phases, Plan, PlannedCancel
from loadgen.plan_io import read_plan, write_plan
from loadgen.workload import WORKLOADS, Fixed, Sessions, SharedPrefix, Slip

PHASES = Phases(window=20.0, warmup=5.0, cooldown=1.0, drain=7.0)
CHAT = Load("chat", Poisson(1.5), Sessions(3, 40, 10, 8, 2.0), "acme", 0)
BATCH = Load("batch", Constant(0.5), Fixed(60, 4), rank=1)
DOCS = Load("docs", Constant(1.0), SharedPrefix(2, 30, 10, 4))


def plan(seed: int = 7, slices: int = 1) -> Plan:
    return Plan.make([CHAT, BATCH, DOCS], PHASES, seed, slices)


def test_the_same_seed_makes_the_same_plan() -> None:
    """Equal seeds give equal digests, another seed or a changed shot another one."""
    one = plan()
    assert one.digest == plan().digest != plan(8).digest
    cancelled = replace(one.shots[3], cancel=PlannedCancel("decode", 2))
    assert one.with_shots((*one.shots[:3], cancelled, *one.shots[4:])).digest != one.digest


def test_one_load_does_not_shift_the_draws_of_another() -> None:
    """Each load draws from streams of its own."""
    alone = Plan.make([CHAT], PHASES, 7)
    with_others = [s.due_ns for s in plan().shots if s.class_ == "chat" and s.due_ns is not None]
    assert [s.due_ns for s in alone.shots if s.due_ns is not None] == with_others


def test_ids_follow_due_times_and_turns_follow_their_parents() -> None:
    """Ids are 0..n-1; exactly one of due time and think time is set; a session is one chain."""
    shots = plan().shots
    assert [s.id for s in shots] == list(range(len(shots)))
    firsts = [s for s in shots if s.turn == 0]
    assert [s.due_ns for s in firsts] == sorted(s.due_ns or 0 for s in firsts)
    for s in shots:
        assert (s.due_ns is None) != (s.after_ns is None)
        if s.parent is not None:
            parent = shots[s.parent]
            assert (parent.session, parent.turn + 1, parent.phase) == (s.session, s.turn, s.phase)
            assert s.prompt[: len(parent.prompt)] == parent.prompt
            assert s.prompt[len(parent.prompt)].answer_of == parent.id
        assert s.n_in_asked == sum(part.tokens for part in s.prompt)


def test_phases_are_cut_by_due_time() -> None:
    """A request belongs to the phase that it is due in."""
    for s in plan().shots:
        if s.due_ns is not None:
            assert s.phase == ("warmup" if s.due_ns < 5e9 else "window" if s.due_ns < 25e9 else "cooldown")


def test_slices_share_the_plan_and_keep_sessions_whole() -> None:
    """Load processes get parts of one plan; nothing is drawn twice."""
    two = plan(slices=2)
    assert sorted(s.id for k in range(2) for s in two.of_slice(k)) == list(range(len(two.shots)))
    assert all(len({s.slice for s in two.shots if s.session == session}) == 1 for session in range(20))
    assert [replace(s, slice=0) for s in two.shots] == list(plan().shots)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """plan.parquet holds everything that decides what is sent when."""
    one = plan()
    shots = list(one.shots)
    shots[2] = replace(shots[2], cancel=PlannedCancel("after", 5), fault="hangup", idempotency_key="k")
    shots[4] = replace(shots[4], duplicate_of=2)
    edited = one.with_shots(tuple(shots))
    write_plan(edited, tmp_path / "plan.parquet")
    assert read_plan(tmp_path / "plan.parquet") == edited
    names = pq.read_schema(tmp_path / "plan.parquet").names
    assert names[:5] == ["id", "class", "tenant", "rank", "session"]


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    """The file knows its digest."""
    path = tmp_path / "plan.parquet"
    write_plan(plan(), path)
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(ValueError, match="does not match its own digest"):
        read_plan(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(ValueError, match="is not a plan"):
        read_plan(path)


def test_sessions_share_their_system_prompt_unless_each_has_its_own() -> None:
    """`shared_system` decides whether sessions can hit each other's prefix."""

    def systems(shared: bool) -> set[str]:
        load = Load("c", Constant(1.0), Sessions(2, 20, 5, 3, shared_system=shared))
        return {s.prompt[0].text_key for s in Plan.make([load], PHASES, 1).shots}

    assert len(systems(True)) == 1
    assert len(systems(False)) == 26


def test_a_slip_stamps_the_system_prompt_from_its_moment_on() -> None:
    """By turn or by time; each stamped turn shows another second."""
    by_turn = Load("c", Constant(1.0), Sessions(4, 20, 5, 3, 0.1, slip=Slip(at_token=12, turn=2)))
    session = Plan.make([by_turn], PHASES, 1).shots[:4]
    stamps = [s.prompt[0].stamp for s in session]
    assert stamps[:2] == [None, None]
    assert stamps[2] is not None
    assert stamps[3] is not None
    assert int(stamps[3]) != int(stamps[2])
    assert all(s.prompt[0].stamp_at == 12 for s in session[2:])
    by_time = Load("c", Constant(1.0), Sessions(1, 20, 5, 3, slip=Slip(at_token=12, after=10.0)))
    stamped = [s.prompt[0].stamp is not None for s in Plan.make([by_time], PHASES, 1).shots]
    assert stamped == [k >= 10 for k in range(26)]


def test_a_slip_without_a_moment_or_outside_the_prompt_is_refused() -> None:
    """The error says which field is wrong."""
    with pytest.raises(ValueError, match=r"`turn` or `after`"):
        Slip(at_token=3)
    with pytest.raises(ValueError, match=r"slip\.at_token"):
        Sessions(2, 10, 5, 3, slip=Slip(at_token=10, turn=1))


def test_demand_counts_what_a_perfect_cache_would_save() -> None:
    """C44: prefill, uncached, decode tokens per second, by class, from the plan alone."""
    load = Load("c", Constant(1.0), Sessions(2, 100, 10, 20, 1.0))
    phases = Phases(window=10.0)
    found = demand(Plan.make([load], phases, 1), alone=lambda s: 0.5)["c"]
    assert found.requests_s == 2.0
    assert found.prefill_tokens_s == 110 + 140
    # First turns after the very first hit the shared system prompt, second turns all but their own question.
    assert found.uncached_tokens_s == (110 + 9 * 10 + 10 * 10) / 10
    assert found.decode_tokens_s == 40
    assert found.kv_tokens_mean == 0.5 * (110 + 10) + 0.5 * (140 + 10)
    assert demand(Plan.make([load], phases, 1))["c"].kv_tokens_mean is None


def test_shots_that_a_dead_process_left_behind_are_unknown() -> None:
    """Every planned shot has a record, also if its process was killed (C23)."""
    one = plan()
    records = unaccounted(one, {0, 2}, "m", "load process 0 was killed")
    assert [r.id for r in records] == [s.id for s in one.shots if s.id not in (0, 2)]
    assert {(r.outcome.value, r.error) for r in records} == {("unknown", "load process 0 was killed")}


def test_the_table_of_workloads_names_those_of_the_scenario_schema() -> None:
    """A scenario's `type` is a key of the table."""
    assert {"duplicates", "fixed", "matrix", "sessions", "shared_prefix"} <= set(WORKLOADS)
