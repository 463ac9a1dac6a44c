"""The cold/warm contract, verified from hits (MEASUREMENT C22; case C-15)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Load, Part, Phases, Plan, Shot
from loadgen.plan_rows import columns_of
from loadgen.workload import Duplicates, Fixed, Sessions, SharedPrefix, Slip
from results.record import Record
from results.run import RunData
from results.sharing import shareable
from results.summary import judge

CASE = json.loads((Path(__file__).parents[1] / "cases" / "loadgen" / "C-15.json").read_text())
VARIANTS = [CASE, *CASE["variants"]]
Make = Callable[..., Record]
MakeRun = Callable[..., RunData]
GATES = ("ttft.p50 < 10s", "dropped == 0")


@dataclass(frozen=True)
class Sent:
    """One prompt of a case, and how many of its leading blocks an earlier cell held."""

    cell: str
    blocks: Sequence[str]
    hits: int


def sent(cells: list[dict[str, Any]]) -> list[Sent]:
    held: set[str] = set()
    made = []
    for cell in cells:
        for blocks in cell["requests"]:
            hits = next((k for k, block in enumerate(blocks) if block not in held), len(blocks))
            made.append(Sent(cell["cell"], blocks, hits))
        held |= {block for blocks in cell["requests"] for block in blocks}
    return made


def runs(prompts: list[Sent]) -> list[list[Sent]]:
    """What one judge sees: load processes and phases are of one run, other cells are runs of their own."""
    of_one = [[s for s in prompts if s.cell[0] == "p" or s.cell in ("warmup", "window")]]
    names = dict.fromkeys(s.cell for s in prompts if s not in of_one[0])
    return [run for run in (*of_one, *([s for s in prompts if s.cell == name] for name in names)) if run]


def plan_of(prompts: list[Sent], block: int) -> pd.DataFrame:
    """As planned, a prompt is unlike all others, but for the measured one that the warm-up sends too."""
    keys = [f"{s.cell if s.cell[0] == 'p' else ''}{s.blocks}" for s in prompts]
    refs = [
        [json.dumps({"role": "user", "tokens": len(s.blocks) * block, "text_key": key})]
        for s, key in zip(prompts, keys, strict=True)
    ]
    phases = ["warmup" if s.cell == "warmup" else "window" for s in prompts]
    return pd.DataFrame({"id": range(len(prompts)), "phase": phases, "body_ref": refs})


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: case["id"])
def test_hits_that_the_plan_does_not_explain_break_a_cold_contract(
    case: dict[str, Any], record: Make, run_of: MakeRun
) -> None:
    """Runs, load processes, sweep steps and the warm-up must be cold to each other; declared warm, they
    need not be."""
    inputs, expect = case["inputs"], case["expect"]
    prompts, block = sent(inputs["cells"]), inputs["block_tokens"]
    assert sum(s.hits for s in prompts) == expect["observed_hit_blocks"]
    shared = {s.blocks[0] for s in prompts if s.hits}
    assert len(shared) == expect.get("shared_first_blocks", len(shared))
    states, exits = [], []
    for run in runs(prompts):
        records = [
            record(i, due_ms=100 * i - (5_000 if s.cell == "warmup" else 0), ttft_ms=500, e2e_ms=600)
            for i, s in enumerate(run)
        ]
        for one, s in zip(records, run, strict=True):
            one.n_in_asked = one.n_in = one.prompt_total = len(s.blocks) * block
            one.cache_read = s.hits * block
        data = run_of(records, cache=inputs["declared"], gates=GATES)
        summary = judge(replace(data, plan=plan_of(run, block)))
        states.append(summary["cache"]["contract"]["state"])
        exits.append(summary["exit"])
    if inputs["declared"] == "warm":
        assert states == ["held"]
    else:
        assert ("violated" if "violated" in states else "held") == expect["cold_contract"]
        assert set(states) <= {"violated", "held"}
    assert max(exits) == expect.get("gate_exit_code", 0)


PHASES = Phases(window=20.0, warmup=5.0)


def planned(workload: Any, rate: float = 2.0) -> tuple[Plan, dict[int, int]]:
    plan = Plan.make([Load("c", Constant(rate), workload)], PHASES, 1)
    found = shareable(pd.DataFrame(columns_of(plan.shots)))
    assert found is not None
    return plan, found


def test_prompts_that_share_nothing_may_read_nothing() -> None:
    """Whatever such a request reads is a breach."""
    _, found = planned(Fixed(100, 4))
    assert set(found.values()) == {0}


def test_groups_share_their_prefix_and_sessions_their_history() -> None:
    """A group's prefix is all that its prompts share. Of a session the next turn brings all that this one
    has, so that only the last question is its turn's own."""
    plan, found = planned(SharedPrefix(2, 64, 16, 4))
    assert set(found.values()) == {64}
    plan, found = planned(Sessions(3, 40, 10, 8, 0.1))
    for shot in plan.shots:
        assert found[shot.id] == shot.n_in_asked - (10 if shot.turn == 2 else 0)


def test_phases_are_looked_at_apart() -> None:
    """A group that only the warm-up and one request of the window have shares nothing with itself."""
    plan, found = planned(SharedPrefix(1, 64, 16, 4), rate=0.1)
    warm = [shot.id for shot in plan.shots if shot.phase == "warmup"]
    assert len(warm) == 1
    assert found[warm[0]] == 0


def test_a_repeated_prompt_may_be_read_whole() -> None:
    """Exact repetitions share everything, the others nothing."""
    plan, found = planned(Duplicates(0.5, 50, 4))
    keys = [shot.prompt[0].text_key for shot in plan.shots]
    for shot, key in zip(plan.shots, keys, strict=True):
        alike = [s for s in plan.shots if s.prompt[0].text_key == key and s.phase == shot.phase]
        assert found[shot.id] == (50 if len(alike) > 1 else 0)
    assert 50 in found.values()
    assert 0 in found.values()


def test_what_stands_before_a_slipped_clock_is_shared() -> None:
    """A prompt with another clock shares the text before it and nothing behind it."""
    plan, found = planned(Sessions(1, 40, 10, 8, slip=Slip(at_token=12, after=10.0)))
    stamped = [shot for shot in plan.shots if shot.prompt[0].stamp is not None]
    assert len(stamped) > 10
    seconds = [int(shot.prompt[0].stamp or 0) for shot in stamped]
    for shot, second in zip(stamped, seconds, strict=True):
        assert found[shot.id] == (40 if seconds.count(second) > 1 else 12)


def test_blocks_of_a_trace_share_their_leading_run() -> None:
    """Equal leading ids under one key are equal text; the last block is cut to the prompt."""

    def shot(id: int, *blocks: tuple[int, int], tokens: int, key: str = "t") -> Shot:
        part = Part("user", tokens, key, blocks=tuple(blocks), block_tokens=16)
        return Shot(id, "c", "window", id, 0, (part,), tokens, 1, due_ns=id)

    shots = [
        shot(0, (1, 5), tokens=78),
        shot(1, (1, 3), (40, 2), tokens=80),
        shot(2, (1, 2), (90, 1), tokens=48, key="other"),
        shot(3, (1, 3), (40, 1), (77, 1), tokens=70),
    ]
    found = shareable(pd.DataFrame(columns_of(shots)))
    assert found == {0: 48, 1: 64, 2: 0, 3: 64}


def test_texts_that_somebody_wrote_may_be_alike() -> None:
    """The plan does not hold them, so that hits on them are no breach."""
    parts = [Part("user", 20, f"@/data/q.jsonl#{k}+9.aa#0") for k in range(2)]
    shots = [Shot(k, "c", "window", k, 0, (part,), 20, 1, due_ns=k) for k, part in enumerate(parts)]
    assert shareable(pd.DataFrame(columns_of(shots))) == {0: 20, 1: 20}


def test_a_template_and_a_second_try_are_no_breach(record: Make, run_of: MakeRun) -> None:
    """All prompts begin with what the template adds; a retry finds what its first attempt left."""
    records = [record(i, due_ms=100 * i, ttft_ms=500, e2e_ms=600) for i in range(8)]
    for one in records:
        one.n_in_asked, one.n_in, one.prompt_total, one.cache_read = 160, 190, 190, 16
    records[0].cache_read = 0
    plan, _ = planned(Fixed(160, 4), rate=0.4)
    frame = pd.DataFrame(columns_of(plan.shots[-8:])).assign(id=range(8))
    data = replace(run_of(records, cache="cold"), plan=frame)
    assert judge(data)["cache"]["contract"]["state"] == "held"
    data.records.loc[5, "cache_read"] = 96
    assert judge(data)["cache"]["contract"]["state"] == "violated"
    data.records.loc[5, "attempt"] = 2
    assert judge(data)["cache"]["contract"]["state"] == "held"


def test_users_of_a_closed_loop_share_with_those_who_began_in_their_phase(
    record: Make, run_of: MakeRun
) -> None:
    """The plan knows only the earliest phase of what follows an answer; the nonce is that of the true one.
    What was never sent brought nothing in."""
    part = Part("system", 160, "g/0")
    shots = [
        Shot(0, "c", "warmup", 0, 0, (part,), 160, 4, due_ns=0),
        Shot(1, "c", "warmup", 1, 0, (part,), 160, 4, after_ns=0, parent=0, fresh=True),
        Shot(2, "c", "warmup", 1, 1, (part,), 160, 4, after_ns=0, parent=1),
        Shot(3, "c", "window", 2, 0, (part,), 160, 4, after_ns=0, parent=2, fresh=True),
    ]
    records = [record(i, due_ms=1000 * i - 500, ttft_ms=500, e2e_ms=600, class_="c") for i in range(4)]
    for one in records:
        one.n_in_asked = one.n_in = one.prompt_total = 160
    records[0].phase, records[3].cache_read, records[0].cache_read = "warmup", 160, 0
    data = replace(run_of(records, cache="cold"), plan=pd.DataFrame(columns_of(shots)))
    assert judge(data)["cache"]["contract"]["state"] == "held"
    for late in (1, 2):
        data.records.loc[late, "outcome"] = "not_sent"
    assert judge(data)["cache"]["contract"]["state"] == "violated"


def test_a_session_keeps_the_phase_that_it_began_in(record: Make, run_of: MakeRun) -> None:
    """Its later turns, due in the window, have the warm-up's nonce: the window's requests share nothing."""
    part = Part("system", 160, "g/0")
    shots = [
        Shot(0, "c", "warmup", 0, 0, (part,), 160, 4, due_ns=0),
        Shot(1, "c", "warmup", 0, 1, (part,), 160, 4, after_ns=0, parent=0),
        Shot(2, "c", "window", 1, 0, (part,), 160, 4, due_ns=2_000_000_000),
    ]
    records = [record(i, due_ms=1000 * i - 500, ttft_ms=500, e2e_ms=600, class_="c") for i in range(3)]
    for one in records:
        one.n_in_asked = one.n_in = one.prompt_total = 160
        one.cache_read = 0
    records[0].phase, records[1].cache_read = "warmup", 160
    data = replace(run_of(records, cache="cold"), plan=pd.DataFrame(columns_of(shots)))
    assert judge(data)["cache"]["contract"]["state"] == "held"
    data.records.loc[2, "cache_read"] = 160
    assert judge(data)["cache"]["contract"]["state"] == "violated"


def test_without_a_plan_only_the_first_requests_tell(record: Make, run_of: MakeRun) -> None:
    """A later one may have read what an earlier one brought in: unverified, never held by silence."""
    records = [record(i, due_ms=100 * i, ttft_ms=500, e2e_ms=600) for i in range(3)]
    for one in records:
        one.n_in_asked, one.n_in, one.prompt_total, one.cache_read = 160, 190, 190, 16
    data = run_of(records, cache="cold")
    assert judge(data)["cache"]["contract"]["state"] == "unverified"
    silent = run_of([replace(one, cache_read=None) for one in records], cache="cold")
    assert judge(silent)["cache"]["contract"]["state"] == "unverified"
