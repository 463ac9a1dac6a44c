"""What no plan could hold, and requests that are longer than their class or the model takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from loadgen.arrivals.concurrency import Concurrency
from loadgen.plan import Arrival, Workload
from loadgen.streams import stream
from loadgen.workload.duplicates import Duplicates
from loadgen.workload.fixed import Fixed
from loadgen.workload.lengths import Amount, Longest, Measured, least
from loadgen.workload.matrix import Matrix
from loadgen.workload.sessions import Sessions
from scenarios.schema import EngineTarget, Scenario

Found = Iterator[tuple[tuple[str | int, ...], str]]

MOST_REQUESTS = 5_000_000
"""Of one load or burst; sessions too."""
_DRAWS = 500


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of the target's model otherwise than from the scenario."""

    context: int | None = None
    """The most tokens of prompt and answer."""
    template: int = 0
    """Tokens that its chat template adds to a prompt of one user message."""
    fault: str | None = None
    """Why no prompts can be made for it."""


UNKNOWN = Model()


def sizes(scenario: Scenario) -> Found:
    """A load is a list of requests in memory; one that would never be made is refused here."""
    for i, load in enumerate(scenario.load):
        span = scenario.phases.load_ns / 1e9
        expected = load.arrives.expected(span)
        at = ("load", i, "arrival" if load.trace is None else "trace")
        each = _requests(load.works)
        if expected > MOST_REQUESTS:
            yield at, f"{expected:.3g} arrivals; at most {MOST_REQUESTS:,} can be planned"
        elif (all_ := _in_all(load.arrives, expected, each)) > MOST_REQUESTS:
            what = f"about {all_:.3g} requests, {each:.3g} a session"
            yield at, f"{what}; at most {MOST_REQUESTS:,} can be planned"
        elif load.trace is not None and expected == 0:
            yield at, f"nothing of it is due in the {span:g} s of load: see start_at and compress"


def _in_all(arrival: Arrival, expected: float, each: float) -> float:
    """Requests of all sessions. What a closed loop expects are requests already; a user begins one session
    at least."""
    return max(expected, arrival.users * each) if isinstance(arrival, Concurrency) else expected * each


def _requests(workload: Workload) -> float:
    """How many requests a session has on average, sub-agents' among them."""
    if not isinstance(workload, Sessions):
        return 1.0
    turns, tools, sub = mean(workload.turns), workload.tools, workload.subagents
    if workload.context is not None and workload.compaction is None:
        turns = min(turns, workload.context / (least(workload.user) + least(workload.output)))
    if (fork := workload.branches) is not None and turns > fork.at:
        turns = fork.at + (turns - fork.at) * fork.count
    calls = 0.0 if tools is None else tools.share * mean(tools.calls)
    sent = 0.0 if sub is None else sub.share * (1 + mean(sub.turns))
    return turns * (1 + calls + sent)


def mean(amount: Amount) -> float:
    """Of what is drawn, about."""
    if isinstance(amount, int):
        return amount
    rng = stream(0, "mean")
    return sum(amount.draw(rng) for _ in range(_DRAWS)) / _DRAWS


def lengths(scenario: Scenario, model: Model = UNKNOWN) -> Found:
    """Loads that can ask for more tokens than their class or the model takes; what a chat template adds
    comes on top, and counts where it is known exactly."""
    for i, load in enumerate(scenario.load):
        if load.class_ in scenario.classes and isinstance(load.works, Measured):
            longest = load.works.longest()
            template = model.template if isinstance(load.works, Fixed | Matrix | Duplicates) else 0
            for asked, most, what in _bounds(scenario, load.class_, longest, model.context, template):
                if most is not None and asked > most:
                    yield ("load", i, "workload"), f"{what} is {most:,}, this can ask for {asked:,} tokens"


def too_long(scenario: Scenario, model: Model = UNKNOWN) -> list[tuple[str, int, str]]:
    """The same of recorded requests: file, line and what is wrong, of all that would be sent."""
    found: list[tuple[str, int, str]] = []
    span = scenario.phases.load_ns / 1e9
    for load in scenario.load:
        if load.trace is not None and load.class_ in scenario.classes:
            misfit = partial(_misfit, scenario, load.class_, model.context)
            found += load.trace.misfits(span, misfit)
    return found


def _misfit(scenario: Scenario, name: str, context: int | None, given: int, asked: int) -> Iterator[str]:
    for wanted, most, what in _bounds(scenario, name, Longest.of(given, asked), context):
        if most is not None and wanted > most:
            remedy = "raise it, or set max_input or max_output with over: drop or over: cut"
            yield f"{what} is {most:,}, this asks for {wanted:,} tokens: {remedy}"


def _bounds(
    scenario: Scenario, name: str, longest: Longest, context: int | None, template: int = 0
) -> Iterator[tuple[int, int | None, str]]:
    """(asked, most, what is bounded) of one load."""
    limits, target = scenario.classes[name].limits, scenario.target
    yield longest.input, limits.input, f"limits.input of class {name!r}"
    clamped = isinstance(target, EngineTarget) and target.engine.admission.over_length == "clamp"
    if not clamped:
        yield longest.output, limits.output, f"limits.output of class {name!r}"
    whole = longest.input + 1 if clamped else longest.total
    yield whole, limits.total, f"limits.total of class {name!r}"
    if context is not None:
        less = f" less the {template} tokens of its chat template" if template else ""
        yield whole, context - template, f"the model's limit{less}"
    if isinstance(target, EngineTarget):
        memory = target.engine.memory
        yield whole, target.engine.max_model_len, "target.engine.max_model_len"
        held = None if memory.kv_blocks is None else memory.kv_blocks * memory.block_size
        yield whole, held, "a worker's memory in tokens (target.engine.memory.kv_blocks times block_size)"
    else:
        yield whole, target.max_model_len, "target.max_model_len"
