"""An earlier run as a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadgen.arrivals import ARRIVALS, Burst, Poisson
from loadgen.plan import Load, Phases, Plan, Shot
from loadgen.plan_io import write_plan
from loadgen.tracefiles import TraceError
from loadgen.tracefiles.own_run import OwnRun
from loadgen.workload import Fixed, Sessions
from results.record import Outcome, Record
from results.recordfile import RECORD_SCHEMA, RecordWriter, frame

Play = Callable[..., tuple[Shot, ...]]
PHASES = Phases(window=30.0, warmup=5.0)
LOADS = [
    Load("chat", Poisson(0.5), Sessions(3, 40, 10, 8, 2.0)),
    Load("batch", Burst(size=4, every=10.0), Fixed(60, 4)),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a plan."""
    write_plan(Plan.make(LOADS, PHASES, 7), tmp_path / "plan.parquet")
    return tmp_path


def same(shot: Shot) -> tuple[object, ...]:
    """What a replay must repeat."""
    return shot.due_ns, shot.after_ns, shot.turn, shot.branch, shot.prompt, shot.n_in_asked, shot.n_out_asked


def test_a_replay_sends_what_the_run_sent(run: Path, shots: Play) -> None:
    """The same due times, bursts included, think times, prompts with their live answers, and lengths."""
    before = Plan.make(LOADS, PHASES, 7).shots
    again = shots(OwnRun(file=str(run)), span=35.0)
    assert [same(s) for s in again] == [same(s) for s in before]


def test_classes_pick_some_of_the_run(run: Path, shots: Play) -> None:
    """Ids are new, and live answers name them."""
    before = [s for s in Plan.make(LOADS, PHASES, 7).shots if s.class_ == "chat"]
    again = shots(OwnRun(file=str(run), classes=("chat",)), span=35.0)
    assert [s.due_ns for s in again] == [s.due_ns for s in before]
    for shot in again:
        assert [p.answer_of for p in shot.prompt if p.role == "assistant"] == list(
            range(shot.id - shot.turn, shot.id)
        )
    with pytest.raises(ValueError, match=r"no class 'chatt' \(known: batch, chat\)"):
        OwnRun(file=str(run), classes=("chatt",))


@pytest.mark.parametrize("killed", [False, True])
def test_served_lengths_come_from_the_records(run: Path, shots: Play, killed: bool) -> None:
    """Of requests that completed; the others ask for what was asked. A killed run has records too."""
    plan = Plan.make(LOADS, PHASES, 7)
    records = [
        Record(s.id, s.class_, s.phase, Outcome.COMPLETED if s.id % 2 else Outcome.TRUNCATED, n_out=3)
        for s in plan.shots
    ]
    if killed:
        with RecordWriter(run / "records-0.arrow") as writer:
            for record in records:
                writer.append(record)
    else:
        table = pa.Table.from_pandas(frame(records), schema=RECORD_SCHEMA, preserve_index=False)
        pq.write_table(table, run / "records.parquet")
    again = shots(OwnRun(file=str(run), lengths="served"), span=35.0)
    assert [s.n_out_asked for s in again] == [3 if s.id % 2 else s.n_out_asked for s in plan.shots]


def test_a_killed_run_has_records_of_every_process(run: Path, shots: Play) -> None:
    """Each wrote its own file."""
    plan = Plan.make(LOADS, PHASES, 7)
    for slice in range(2):
        with RecordWriter(run / f"records-{slice}.arrow") as writer:
            for shot in plan.shots[slice::2]:
                writer.append(Record(shot.id, shot.class_, shot.phase, Outcome.COMPLETED, n_out=3))
    again = shots(OwnRun(file=str(run), lengths="served"), span=35.0)
    assert {s.n_out_asked for s in again} == {3}


def test_served_lengths_need_records_of_answers(run: Path) -> None:
    """Without any, what was asked would be sent under their name."""
    with pytest.raises(TraceError, match=r"records\.parquet:0: no records of a run: neither it nor"):
        OwnRun(file=str(run), lengths="served")
    with RecordWriter(run / "records-0.arrow") as writer:
        writer.append(Record(0, "chat", "window", Outcome.TRUNCATED, n_out=3))
    with pytest.raises(TraceError, match=r"records-0\.arrow:0: no request of this run was answered to its"):
        OwnRun(file=str(run), lengths="served")
    assert OwnRun(file=str(run)).facts(35.0)["served_lengths"] == 0


def test_prompts_of_a_run_are_not_cut(run: Path, shots: Play) -> None:
    """They would be sent whole; answers can be shorter, and what is too long can be dropped."""
    with pytest.raises(ValueError, match="an earlier run cannot be cut to max_input: say over: drop"):
        OwnRun(file=str(run), max_input=20, over="cut")
    with pytest.raises(TraceError, match=r"above max_input 50: raise it, or say over: drop$"):
        OwnRun(file=str(run), max_input=50, classes=("batch",))
    assert {s.n_out_asked for s in shots(OwnRun(file=str(run), max_output=3, over="cut"))} == {3}
    sent = shots(OwnRun(file=str(run), max_input=58, over="drop"), span=35.0)
    assert sent
    assert all(s.n_in_asked <= 58 for s in sent)


def test_branches_and_sub_agents_come_again(run: Path, shots: Play) -> None:
    """A sub-agent is a session of its own again, behind the request that called it."""
    plan = Plan.make(LOADS, PHASES, 7)
    chat = [s for s in plan.shots if s.class_ == "chat"][:3]
    made = [
        replace(chat[0], id=0, session=0),
        replace(chat[1], id=1, session=1, turn=0, parent=0, prompt=chat[0].prompt),
        replace(chat[1], id=2, session=0, turn=1, parent=0, branch=1, prompt=chat[0].prompt),
    ]
    write_plan(plan.with_shots(tuple(made)), run / "plan.parquet")
    again = shots(OwnRun(file=str(run)), span=35.0)
    assert [(s.session, s.turn, s.parent, s.branch) for s in again] == [
        (0, 0, None, 0),
        (1, 0, 0, 0),
        (0, 1, 0, 1),
    ]


def test_a_closed_loop_comes_again_as_a_chain(run: Path, shots: Play) -> None:
    """Sessions of one user follow each other as in the run; how many there are is said."""
    users = ARRIVALS["concurrency"](users=2, think=1.0)  # type: ignore[call-arg]
    plan = Plan.make([Load("c", users, Fixed(10, 2))], Phases(window=5.0), 1)
    write_plan(plan, run / "plan.parquet")
    made = OwnRun(file=str(run))
    again = shots(made, span=5.0)
    assert sorted(str(s.due_ns) for s in again) == sorted(str(s.due_ns) for s in plan.shots)
    assert made.facts(5.0)["closed_loop_sessions"] == sum(s.fresh for s in plan.shots) > 0


def test_what_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    """A folder without a plan, a plan that was edited, records that are none."""
    with pytest.raises(TraceError, match=r"plan\.parquet:0: no plan of a run"):
        OwnRun(file=str(_made(tmp_path / "empty")))
    plan = run / "plan.parquet"
    table = pq.read_table(plan)
    pq.write_table(table.slice(0, 3).replace_schema_metadata(table.schema.metadata), plan)
    with pytest.raises(TraceError, match=r"no plan of a run: .*digest"):
        OwnRun(file=str(run))
    write_plan(Plan.make(LOADS, PHASES, 7), plan)
    (run / "records.parquet").write_text("x")
    with pytest.raises(TraceError, match="no records of a run"):
        OwnRun(file=str(run), lengths="served")


def _made(path: Path) -> Path:
    path.mkdir()
    return path
