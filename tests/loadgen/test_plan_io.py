"""plan.parquet, whole or in parts, and what it costs to read."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen import plan_rows
from loadgen.arrivals import Concurrency, Poisson
from loadgen.plan import Load, Part, Phases, Plan, PlannedCancel, Shot
from loadgen.plan_io import read_plan, read_shots, write_plan
from loadgen.workload import Fixed, Sessions

PHASES = Phases(window=20.0, warmup=1.0)


@pytest.fixture
def plan() -> Plan:
    loads = [
        Load("chat", Poisson(3.0), Sessions(3, 40, 10, 8, 2.0), tenants={"a": 0.5, "b": 0.5}),
        Load("batch", Concurrency(2, think=1.0), Fixed(60, 4), rank=1),
    ]
    return Plan.make(loads, PHASES, 7, slices=3)


def test_a_load_process_reads_its_slice_and_no_text(plan: Plan, tmp_path: Path) -> None:
    """Without prompts a shot is all that is needed to send it on time; phases and seed come along."""
    write_plan(plan, tmp_path / "plan.parquet")
    for slice in range(3):
        shots, phases, seed = read_shots(tmp_path / "plan.parquet", slice, prompts=False)
        assert (phases, seed) == (PHASES, 7)
        assert shots == tuple(replace(shot, prompt=()) for shot in plan.of_slice(slice))
    assert read_shots(tmp_path / "plan.parquet", None, prompts=True)[0] == plan.shots
    assert read_shots(tmp_path / "plan.parquet", 9, prompts=False)[0] == ()


def test_a_plan_is_read_in_batches(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows are held at once changes neither the file nor the digest."""
    write_plan(plan, tmp_path / "one.parquet")
    monkeypatch.setattr(plan_rows, "BATCH", 7)
    again = replace(plan)
    assert again.digest == plan.digest
    write_plan(again, tmp_path / "many.parquet")
    assert pq.ParquetFile(tmp_path / "many.parquet").num_row_groups > 5
    assert read_plan(tmp_path / "many.parquet") == read_plan(tmp_path / "one.parquet") == plan


def test_a_plan_without_shots_is_a_plan(tmp_path: Path) -> None:
    """A load may be so rare that nothing comes."""
    write_plan(Plan((), PHASES, 1), tmp_path / "plan.parquet")
    assert read_plan(tmp_path / "plan.parquet") == Plan((), PHASES, 1)


def test_a_cut_or_older_file_is_refused_by_whoever_reads_a_part(plan: Plan, tmp_path: Path) -> None:
    """A load process does not send a part of a part, nor guess what an older file meant."""
    path = tmp_path / "plan.parquet"
    write_plan(plan, path)
    table = pq.read_table(path)
    pq.write_table(table.slice(2), path)
    with pytest.raises(ValueError, match=rf"has {len(plan.shots) - 2} of its {len(plan.shots)} shots"):
        read_shots(path, 0, prompts=False)
    old = {**table.schema.metadata, b"headrace_plan": b"1"}
    pq.write_table(table.replace_schema_metadata(old), path)
    with pytest.raises(ValueError, match="is not a plan of version 2; make it again"):
        read_shots(path, 0, prompts=False)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
parts = st.builds(
    Part,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    tokens=st.integers(0, 10**8),
    text_key=texts,
    answer_of=st.none() | st.integers(0, 9),
    stamp=st.none() | st.floats(0, 1e6),
    stamp_at=st.integers(0, 9),
    blocks=st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 99)), max_size=3).map(tuple),
    block_tokens=st.integers(0, 512),
    call=st.booleans(),
)
shots = st.builds(
    Shot,
    id=st.integers(0, 2**32 - 1),
    class_=texts,
    phase=st.sampled_from(["warmup", "window", "cooldown"]),
    session=st.integers(0, 2**32 - 1),
    turn=st.integers(0, 2**16 - 1),
    prompt=st.lists(parts, max_size=4).map(tuple),
    n_in_asked=st.integers(0, 10**8),
    n_out_asked=st.integers(0, 10**8),
    due_ns=st.none() | st.integers(0, 10**18),
    after_ns=st.none() | st.integers(0, 10**18),
    parent=st.none() | st.integers(0, 2**32 - 1),
    branch=st.integers(0, 999),
    tenant=texts,
    rank=st.integers(0, 255),
    cancel=st.none() | st.builds(PlannedCancel, st.sampled_from(["queued", "after"]), st.integers(0, 10**12)),
    duplicate_of=st.none() | st.integers(0, 9),
    idempotency_key=st.none() | texts,
    fault=st.none() | texts,
    slice=st.integers(0, 2**16 - 1),
    adapter=st.none() | texts,
    fresh=st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(shots, max_size=6))
def test_any_shot_survives_the_file(tmp_path: Path, found: list[Shot]) -> None:
    """Every field, at any value that its column holds."""
    plan = Plan(tuple(found), PHASES, 2**62)
    write_plan(plan, tmp_path / "plan.parquet")
    assert read_plan(tmp_path / "plan.parquet") == plan
    part = read_shots(tmp_path / "plan.parquet", None, prompts=False)[0]
    assert part == tuple(replace(shot, prompt=()) for shot in found)


def test_a_shot_that_no_column_holds_is_an_error_and_not_another_shot(tmp_path: Path) -> None:
    """Nothing is cut off to make it fit."""
    shot = Shot(0, "c", "window", 0, 2**16, (), 1, 1, due_ns=0)
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        write_plan(Plan((shot,), PHASES, 1), tmp_path / "plan.parquet")


def big_plan() -> Plan:
    """Requests of four long-keyed messages each, a thousand a second."""
    history = tuple(Part("user", 900, f"7/0/history/{k}") for k in range(3))

    def shot(k: int) -> Shot:
        prompt = (*history, Part("user", 40, f"7/0/u{k}"))
        return Shot(k, "chat", "window", k, 0, prompt, 2740, 50, due_ns=k * 10**6)

    return Plan(tuple(shot(k) for k in range(BIG)), PHASES, 1)


BIG = 20_000


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the plan at once."""
    monkeypatch.setattr(plan_rows, "BATCH", BIG // 20)


@pytest.mark.usefixtures("small_batches")
def test_what_a_load_process_holds_of_a_shot_is_small(tmp_path: Path) -> None:
    """At most 400 bytes each, so some hundred MB for a million, however long the prompts are; and while it
    reads, little more than that."""
    write_plan(big_plan(), tmp_path / "plan.parquet")
    tracemalloc.start()
    try:
        shots, _, _ = read_shots(tmp_path / "plan.parquet", None, prompts=False)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(shots) == BIG
    assert held / BIG < 400
    assert (peak - held) / BIG < 120


@pytest.mark.usefixtures("small_batches")
def test_writing_holds_one_batch(tmp_path: Path) -> None:
    """Beside the plan itself, no list of all rows: some hundred bytes a shot for the twentieth at hand."""
    plan = big_plan()
    tracemalloc.start()
    try:
        write_plan(plan, tmp_path / "plan.parquet")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / BIG < 100
