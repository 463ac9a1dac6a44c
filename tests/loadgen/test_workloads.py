"""What is sent: lengths and waits as drawn, and every workload's sessions as planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Constant
from loadgen.plan import Load, Opening, Phases, Plan, Shot, Turn, Workload
from loadgen.streams import stream
from loadgen.text import Prompter, TextMaker
from loadgen.workload import (
    WORKLOADS,
    Branches,
    Compaction,
    Duplicates,
    Fixed,
    Idle,
    Matrix,
    Sessions,
    SharedPrefix,
    Subagents,
    Tools,
)
from loadgen.workload.lengths import Amount, Choices, Lognormal, Measured, Pareto, Uniform, least, most
from loadgen.workload.waits import ExponentialTime, LognormalTime, ParetoTime, UniformTime, Wait

PHASES = Phases(window=20.0, warmup=5.0, cooldown=1.0)


def opening(index: int = 0, seed: int = 1, first_id: int = 100) -> Opening:
    return Opening(index, 10**9, first_id, f"{seed}/0", stream(seed, "session", 0, index))


def turns_of(workload: Workload, sessions: int = 20, seed: int = 1) -> list[tuple[Turn, ...]]:
    return [workload.session(opening(k, seed)) for k in range(sessions)]


def tokens(turn: Turn) -> int:
    return sum(part.tokens for part in turn.prompt)


# --- amounts and waits

AMOUNTS: list[Amount] = [
    7,
    Lognormal(300, 4000),
    Lognormal(300, 4000, 20, 5000),
    Uniform((100, 500)),
    Pareto(1.2, 50, 30_000),
    Choices({"128": 0.5, "1024": 0.3, "8192": 0.2}),
]


@pytest.mark.parametrize("amount", AMOUNTS, ids=str)
def test_amounts_stay_between_their_ends(amount: Amount) -> None:
    """What the checks before a run believe of a length is true of every draw."""
    rng = np.random.default_rng(1)
    drawn = [amount if isinstance(amount, int) else amount.draw(rng) for _ in range(20_000)]
    assert all(isinstance(n, int) for n in drawn)
    assert least(amount) <= min(drawn)
    assert max(drawn) <= most(amount)


def quantile(amount: Any, q: float) -> float:
    rng = np.random.default_rng(2)
    return float(np.quantile([amount.draw(rng) for _ in range(100_000)], q))


def test_amounts_follow_their_law() -> None:
    """The named quantiles of a log-normal, the tail of a Pareto, the shares of choices."""
    assert quantile(Lognormal(300, 4000), 0.5) == pytest.approx(300, rel=0.03)
    assert quantile(Lognormal(300, 4000), 0.99) == pytest.approx(4000, rel=0.08)
    assert quantile(Uniform((100, 500)), 0.25) == pytest.approx(200, rel=0.03)
    tail = Pareto(1.2, 50, 30_000_000)
    assert quantile(tail, 0.5) == pytest.approx(50 * 2 ** (1 / 1.2), rel=0.03)
    assert quantile(tail, 0.9) == pytest.approx(50 * 10 ** (1 / 1.2), rel=0.05)
    rng = np.random.default_rng(3)
    counts = Counter(Choices({"1": 0.2, "5": 0.8, "9": 0.0}).draw(rng) for _ in range(20_000))
    assert counts[5] / 20_000 == pytest.approx(0.8, abs=0.015)
    assert counts[9] == 0
    assert most(Choices({"1": 0.2, "5": 0.8, "9": 0.0})) == 5


def test_waits_follow_their_law() -> None:
    """The named quantiles and means, in s; no wait passes its cap."""
    assert quantile(LognormalTime(10.0, 3000.0), 0.5) == pytest.approx(10, rel=0.03)
    assert quantile(LognormalTime(10.0, 3000.0), 0.99) == pytest.approx(3000, rel=0.15)
    assert quantile(ExponentialTime(4.0), 0.5) == pytest.approx(4 * np.log(2), rel=0.03)
    assert quantile(UniformTime((1.0, 3.0)), 0.5) == pytest.approx(2, rel=0.02)
    assert quantile(ParetoTime(1.5, 300.0, 1e9), 0.9) == pytest.approx(300 * 10 ** (1 / 1.5), rel=0.06)
    for wait in (LognormalTime(10.0, 3000.0, 20.0), ExponentialTime(10.0, 20.0), ParetoTime(1.1, 1.0, 20.0)):
        assert quantile(wait, 1.0) <= 20.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lognormal(300, 200), "p99 must be at least the median"),
        (lambda: Lognormal(300, 400, 500), "min"),
        (lambda: Lognormal(300, 400, max=200), "max must be at least"),
        (lambda: Uniform((5, 3)), "uniform takes the smallest and the largest"),
        (lambda: Uniform((5,)), "uniform takes"),
        (lambda: Pareto(0.0, 1, 5), "pareto must be above 0"),
        (lambda: Pareto(1.0, 6, 5), "min 6 and max 5"),
        (lambda: Choices({"5": 0.5}), "sum to 0.5"),
        (lambda: Choices({"few": 1.0}), "'few' is not a whole number"),
        (lambda: LognormalTime(5.0, 1.0), "p99 must be at least"),
        (lambda: ExponentialTime(0.0), "mean must be above 0s"),
        (lambda: UniformTime((3.0, 1.0)), "uniform takes"),
        (lambda: ParetoTime(1.0, 0.0, 1.0), "min 0 s"),
        (lambda: Fixed(0, 1), "input must be 1 to 100,000,000 tokens, not 0"),
        (lambda: Fixed(Uniform((0, 9)), 1), "input must be 1 to 100,000,000 tokens, and 0 could be drawn"),
        (lambda: SharedPrefix(0, 1, 1, 1), "groups must be at least 1"),
        (lambda: SharedPrefix(2, 1, 1, 1, zipf=-1.0), "zipf must be 0"),
        (lambda: Matrix((), (1,)), "inputs is empty"),
        (lambda: Matrix((1,), (0,)), "outputs must be 1 to"),
        (lambda: Duplicates(1.0, 1, 1), "share must be below 100%"),
        (lambda: Duplicates(0.5, 1, 1, within=0), "within must be at least 1"),
        (lambda: Sessions(0, 1, 1, 1), "turns must be 1 to 10,000, not 0"),
        (lambda: Sessions(9_000, 1, 1, 1, tools=Tools(20, 1)), "could have 189,000 requests"),
        (lambda: Sessions(9, 500, 9, 1, compaction=Compaction(520, 20)), "compaction.at must be at least"),
        (lambda: Sessions(9, 500, 9, 10, context=510), "context must hold a first request, 519 tokens"),
        (lambda: Branches(0, 2), "at must be 1 or more"),
        (lambda: Branches(1, 1), "count must be 2"),
        (lambda: Subagents(0.5, 0, 1, 1, 1, 1), "turns must be 1"),
        (lambda: Tools(1, 0), "result must be 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(make: Any, words: str) -> None:
    """Each message begins with the key that is wrong."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  its words are looked at
        make()
    assert words in str(caught.value)


# --- every workload

amounts = st.one_of(
    st.integers(1, 60),
    st.builds(lambda a, b: Uniform((a, a + b)), st.integers(1, 40), st.integers(0, 30)),
    st.builds(lambda a, b: Lognormal(a, a * b), st.integers(2, 30), st.integers(1, 4)),
    st.builds(lambda a, b: Pareto(1.1, a, a + b), st.integers(1, 30), st.integers(0, 60)),
)
few = st.one_of(st.integers(1, 4), st.builds(lambda a: Uniform((1, a)), st.integers(1, 5)))
shares = st.floats(0, 1)
waits: st.SearchStrategy[Wait] = st.one_of(
    st.floats(0, 5), st.just(LognormalTime(1.0, 9.0)), st.just(ExponentialTime(2.0))
)
sessions = st.builds(
    Sessions,
    turns=few,
    system=amounts,
    user=amounts,
    output=amounts,
    think=waits,
    shared_system=st.booleans(),
    history=st.sampled_from(["live", "recorded"]),
    tools=st.none()
    | st.builds(Tools, calls=few, result=amounts, think=waits, share=shares, output=st.none() | amounts),
    subagents=st.none()
    | st.builds(
        Subagents,
        share=shares,
        turns=few,
        system=amounts,
        task=amounts,
        output=amounts,
        report=amounts,
        step=amounts,
        think=waits,
    ),
    branches=st.none() | st.builds(Branches, at=st.integers(1, 3), count=st.integers(2, 3)),
    compaction=st.none() | st.builds(Compaction, at=st.integers(900, 1500), summary=st.integers(1, 60)),
    idle=st.none() | st.builds(Idle, share=shares, gap=st.just(ParetoTime(1.1, 60.0, 3600.0))),
    context=st.none() | st.integers(900, 2000),
)
workloads: st.SearchStrategy[Workload] = st.one_of(
    st.builds(Fixed, amounts, amounts),
    st.builds(SharedPrefix, st.integers(1, 9), amounts, amounts, amounts, st.none() | st.floats(0, 3)),
    st.builds(Matrix, st.lists(st.integers(1, 60), min_size=1, max_size=4).map(tuple), st.just((3, 5))),
    st.builds(Duplicates, st.floats(0, 0.9), amounts, amounts, st.none() | st.integers(1, 5)),
    sessions,
)


@settings(max_examples=150, deadline=None)
@given(workloads, st.integers(0, 5), st.integers(0, 3))
def test_every_workload_keeps_what_it_promises(workload: Workload, index: int, seed: int) -> None:
    """Equal seeds give equal sessions; nothing is larger than ``longest``; parents come before their
    children; every part has text of its length."""
    made = workload.session(opening(index, seed))
    assert made == workload.session(opening(index, seed))
    assert isinstance(workload, Measured)
    longest = workload.longest()
    for k, turn in enumerate(made):
        assert (turn.after_ns is None) == (k == 0)
        assert turn.parent is None if k == 0 else turn.parent is None or 0 <= turn.parent < k
        assert turn.n_out >= 1
        assert tokens(turn) <= longest.input
        assert turn.n_out <= longest.output
        assert tokens(turn) + turn.n_out <= longest.total
        assert turn.prompt[-1].role in ("user", "tool")
        assert all(part.tokens >= 1 for part in turn.prompt)


@settings(max_examples=60, deadline=None)
@given(workloads)
def test_every_workload_makes_a_plan_whose_texts_have_their_lengths(workload: Workload) -> None:
    """n_in_asked is the sum of the parts, and the words of the messages are as many."""
    plan = Plan.make([Load("c", Constant(0.2), workload)], PHASES, 3)
    prompter = Prompter(TextMaker(), "n")
    answers = {shot.id: " ".join(["word"] * shot.n_out_asked) for shot in plan.shots}
    for shot in plan.shots:
        assert shot.n_in_asked == sum(part.tokens for part in shot.prompt)
        messages = prompter.messages(shot, answers)
        assert sum(len(message["content"].split()) for message in messages) == shot.n_in_asked
        calls = [m["tool_calls"][0]["id"] for m in messages if "tool_calls" in m]
        assert calls == [m["tool_call_id"] for m in messages if m["role"] == "tool"]


def paths(plan: Plan) -> list[tuple[Shot, Shot]]:
    """(earlier, later) requests that follow each other in one line of a session."""
    last: dict[tuple[int, int], Shot] = {}
    found = []
    for shot in plan.shots:
        before = last.get((shot.session, shot.branch))
        if before is None and shot.turn:
            before = max((s for s in last.values() if s.session == shot.session), key=lambda s: s.id)
        if before is not None and before.turn == shot.turn - 1:
            found.append((before, shot))
        last[shot.session, shot.branch] = shot
    return found


@settings(max_examples=60, deadline=None)
@given(sessions.map(lambda s: replace(s, compaction=None, branches=None)))
def test_a_later_prompt_begins_with_the_one_before_and_its_answer(workload: Sessions) -> None:
    """With live and with recorded answers, in sub-agents too: nothing that was said changes."""
    plan = Plan.make([Load("c", Constant(0.2), workload)], PHASES, 3)
    for before, after in paths(plan):
        grown = after.prompt[: len(before.prompt) + 1]
        assert grown[:-1] == before.prompt
        assert grown[-1].role == "assistant"
        assert grown[-1].tokens == before.n_out_asked
        assert grown[-1].answer_of == (before.id if workload.history == "live" else None)
        assert bool(grown[-1].text_key) == (workload.history == "recorded")


# --- one by one


def test_groups_are_popular_by_zipfs_law() -> None:
    """The k-th group in proportion to 1/k^s; without an exponent all alike."""
    drawn = Counter(turns[0].prompt[0].text_key for turns in turns_of(SharedPrefix(50, 9, 9, 1, 1.0), 6_000))
    weights = 1 / np.arange(1, 51)
    for k in (0, 1, 9):
        assert drawn[f"1/0/g{k}"] / 6_000 == pytest.approx(weights[k] / weights.sum(), rel=0.2)
    even = Counter(turns[0].prompt[0].text_key for turns in turns_of(SharedPrefix(5, 9, 9, 1), 5_000))
    assert all(count / 5_000 == pytest.approx(0.2, abs=0.03) for count in even.values())


def test_a_group_has_one_length_of_prefix() -> None:
    """A drawn prefix is drawn once a group: what is shared is the same for all."""
    sizes: dict[str, set[int]] = {}
    for (turn,) in turns_of(SharedPrefix(6, Lognormal(300, 900), 9, 1), 200):
        sizes.setdefault(turn.prompt[0].text_key, set()).add(turn.prompt[0].tokens)
    assert all(len(found) == 1 for found in sizes.values())
    assert len({size for found in sizes.values() for size in found}) > 1


@pytest.mark.parametrize("order", ["round_robin", "shuffled"])
def test_a_matrix_has_every_cell_equally_often(order: Any) -> None:
    """After each round all counts are equal, in between they differ by one at most."""
    grid = Matrix((10, 20, 30), (1, 2), order)
    cells = [(tokens(turns[0]), turns[0].n_out) for turns in turns_of(grid, 27)]
    assert set(Counter(cells[:24]).values()) == {4}
    assert len(Counter(cells[:24])) == 6
    assert max(Counter(cells).values()) - min(Counter(cells).values()) <= 1
    if order == "round_robin":
        assert cells[:6] == cells[6:12] == [(i, o) for i in (10, 20, 30) for o in (1, 2)]
    else:
        assert cells[:6] != cells[6:12]


def test_duplicates_repeat_earlier_prompts_word_for_word() -> None:
    """A share of the requests; the key and the lengths are those of an earlier request of the load."""
    workload = Duplicates(0.3, Uniform((10, 90)), Uniform((1, 20)))
    made = [turns[0] for turns in turns_of(workload, 2_000)]
    keys = [turn.prompt[0].text_key for turn in made]
    repeats = [k for k, key in enumerate(keys) if key != f"1/0/u{k}"]
    assert len(repeats) / 2_000 == pytest.approx(0.3, abs=0.03)
    for k in repeats:
        assert made[k] in made[:k]
    near = Duplicates(0.5, 10, 1, within=3)
    originals = [near.original("1/0", k) for k in range(500)]
    for k, original in enumerate(originals):
        assert original == k or original in originals[max(0, k - 3) : k]


def roles(turn: Turn) -> str:
    return "".join(part.role[0] for part in turn.prompt)


def test_a_turn_with_tool_calls_is_several_requests() -> None:
    """Each result follows the call it answers, after the tool's own time; answers that call are short."""
    workload = Sessions(2, 50, 10, 30, 4.0, tools=Tools(2, 20, 0.5, output=5))
    (made,) = turns_of(workload, 1)
    assert [roles(turn) for turn in made] == [
        "su",
        "suat",
        "suatat",
        "suatatau",
        "suatatauat",
        "suatatauatat",
    ]
    assert [turn.n_out for turn in made] == [5, 5, 30, 5, 5, 30]
    assert [turn.after_ns for turn in made] == [None, 5e8, 5e8, 4e9, 5e8, 5e8]
    assert [part.call for part in made[-1].prompt if part.role == "assistant"] == [
        True,
        True,
        False,
        True,
        True,
    ]
    some = Sessions(10, 50, 10, 30, tools=Tools(1, 20, share=0.3))
    requests = sum(len(turns) for turns in turns_of(some, 100))
    assert (requests - 1_000) / 1_000 == pytest.approx(0.3, abs=0.06)


def test_a_sub_agent_is_a_lineage_that_the_session_waits_for() -> None:
    """It has its own system prompt and history; the session goes on, with its report, when it is done."""
    agent = Subagents(1.0, turns=3, system=70, task=15, output=6, report=25, step=9, think=0.2)
    workload = Sessions(1, 50, 10, 30, subagents=agent)
    (made,) = turns_of(workload, 1)
    assert [turn.lineage for turn in made] == [0, 1, 1, 1, 0]
    assert [turn.parent for turn in made] == [None, 0, 1, 2, 3]
    assert [roles(turn) for turn in made] == ["su", "su", "suat", "suatat", "suat"]
    assert [turn.after_ns for turn in made] == [None, 0, 2e8, 2e8, 0]
    assert made[1].prompt[0].text_key == "1/0/sub"
    assert (made[4].prompt[3].tokens, made[4].prompt[2].answer_of, made[4].prompt[2].call) == (25, 100, True)
    plan = Plan.make([Load("c", Constant(0.2), workload)], PHASES, 3)
    assert len({shot.session for shot in plan.shots[:5]}) == 2
    assert len({shot.slice for shot in plan.shots[:5]}) == 1


def test_branches_share_what_was_said_before_they_parted() -> None:
    """Turns 2 and 3 of each branch: its own words, and the parent at which it parted."""
    workload = Sessions(4, 50, 10, 30, 1.0, branches=Branches(at=2, count=3))
    (made,) = turns_of(workload, 1)
    assert [turn.branch for turn in made] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert [turn.parent for turn in made] == [None, 0, 1, 2, 1, 4, 1, 6]
    for k in (2, 4, 6):
        assert made[k].prompt[:-1] == made[2].prompt[:-1]
        assert made[k].prompt[: len(made[1].prompt)] == made[1].prompt
    assert len({made[k].prompt[-1].text_key for k in (2, 4, 6)}) == 3
    short = Sessions(2, 50, 10, 30, branches=Branches(at=2, count=3))
    assert [turn.branch for turn in turns_of(short, 1)[0]] == [0, 0]


def test_compaction_replaces_the_history_behind_the_system_prompt() -> None:
    """Prompts grow until they would pass the limit; then a summary and the last answer are all that is
    left, and they grow again from there."""
    workload = Sessions(30, 100, 10, 40, history="recorded", compaction=Compaction(500, 60))
    (made,) = turns_of(workload, 1)
    sizes = [tokens(turn) for turn in made]
    drops = [k for k in range(1, 30) if sizes[k] < sizes[k - 1]]
    assert len(drops) >= 2
    assert max(sizes) <= 500
    for k in drops:
        assert roles(made[k]) == "suau"
        assert made[k].prompt[0] == made[0].prompt[0]
        assert made[k].prompt[1].tokens == 60
        assert made[k].prompt[2] == made[k + 1].prompt[2]
        assert sizes[k] == 100 + 60 + 40 + 10
        assert sizes[k - 1] + 50 > 500


def test_a_session_ends_before_its_context_is_full() -> None:
    """No request, prompt and answer, passes it; the next one would have."""
    workload = Sessions(100, 100, 10, 40, context=500)
    for made in turns_of(workload, 3):
        assert tokens(made[-1]) + 40 <= 500 < tokens(made[-1]) + 40 + 50
    assert workload.longest().total == 500


def test_some_pauses_are_long() -> None:
    """A share of the thinking is idling, with a long tail; the rest is thinking."""
    workload = Sessions(50, 10, 10, 10, 2.0, idle=Idle(0.05, ParetoTime(1.1, 300.0, 7_200.0)))
    pauses = [turn.after_ns / 1e9 for made in turns_of(workload, 100) for turn in made if turn.after_ns]
    long = [pause for pause in pauses if pause > 2]
    assert len(long) / len(pauses) == pytest.approx(0.05, abs=0.01)
    assert min(long) >= 300
    assert max(long) > 3_000


def test_a_shared_system_prompt_has_one_length() -> None:
    """Drawn once a load if it is shared, once a session if not."""
    shared = {made[0].prompt[0] for made in turns_of(Sessions(1, Uniform((50, 900)), 5, 5), 30)}
    assert len(shared) == 1
    own = {
        made[0].prompt[0] for made in turns_of(Sessions(1, Uniform((50, 900)), 5, 5, shared_system=False), 30)
    }
    assert len({part.text_key for part in own}) == 30
    assert len({part.tokens for part in own}) > 20


def test_the_longest_request_is_reached() -> None:
    """What the checks compare with a limit is no loose bound where nothing is drawn."""
    agent = Subagents(1.0, turns=2, system=70, task=15, output=6, report=25)
    for workload in (
        Fixed(10, 3),
        SharedPrefix(2, 10, 5, 3),
        Matrix((3, 9), (2, 4)),
        Sessions(3, 50, 10, 30, tools=Tools(2, 20)),
        Sessions(3, 50, 10, 30, tools=Tools(2, 20), subagents=agent),
        Sessions(3, 500, 10, 30, subagents=replace(agent, system=9_000)),
    ):
        made = [turn for turns in turns_of(workload, 8) for turn in turns]
        longest = workload.longest()
        assert max(tokens(turn) for turn in made) == longest.input
        assert max(turn.n_out for turn in made) == longest.output
        assert max(tokens(turn) + turn.n_out for turn in made) == longest.total


def test_every_workload_of_the_table_says_how_long_it_can_become() -> None:
    """Else a prompt beyond the model's limit would be found out by the server."""
    for name in ("fixed", "shared_prefix", "sessions", "matrix", "duplicates"):
        assert issubclass(WORKLOADS[name], Measured)
