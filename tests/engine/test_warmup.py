import itertools

import pytest

from engine.config import CacheConfig, ClassConfig, EngineConfig, MemoryConfig
from engine.runner.base import StepPlan, StepResult
from engine.runner.simulated import SimulatedRunner
from engine.warmup import UNDECLARED_PROMPT, WarmUpFailed, longest_prompt, warm_up

CONFIG = EngineConfig(
    model="simulated",
    memory=MemoryConfig(kv_blocks=128),
    classes={"chat": ClassConfig(max_input=300), "batch": ClassConfig(max_input=1000)},
)


class Watched(SimulatedRunner):
    """Notes what it computes; ``fails`` decides which step raises."""

    def __init__(self, fails=lambda plan: False):
        super().__init__(CONFIG.cost)
        self.allocate(128, 16)
        self.plans: list[StepPlan] = []
        self.fails = fails

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self.fails(plan):
            raise RuntimeError("no kernel for this shape")
        return super().execute(plan)


def run(runner, config=CONFIG):
    ticks = itertools.count(step=1_000_000)
    warm_up(config, runner, lambda: next(ticks))


def test_everything_is_done_once():
    """Longest class prompt in chunks, a decode, a hit, a concurrent batch (E51)."""
    runner = Watched()
    run(runner)
    rows = [row for plan in runner.plans for row in plan.rows]
    first = [row for row in rows if row.id == 1 and not row.is_decode]
    assert sum(len(row.tokens) for row in first) == 1000
    assert len(first) > 1, "in chunks"
    assert any(row.is_decode for row in rows)
    again = [row for row in rows if row.id == 2 and not row.is_decode]
    assert again[0].start == 992, "a hit up to the last full block"
    assert any(len(plan.rows) > 1 for plan in runner.plans)


def test_a_failure_on_the_longest_prompt_only_is_a_failure():
    """A worker that cannot compute the longest prompt never gets ready (case C19 e)."""
    runner = Watched(lambda plan: any(row.start > 800 for row in plan.rows))
    with pytest.raises(WarmUpFailed, match="the longest prompt: RuntimeError: no kernel"):
        run(runner)


def test_without_a_cache_nothing_needs_to_hit():
    """With the prefix cache off the repeated prompt is computed again."""
    config = EngineConfig(
        model="simulated", memory=CONFIG.memory, classes=CONFIG.classes, cache=CacheConfig(enabled=False)
    )
    run(Watched(), config)


@pytest.mark.parametrize(
    ("classes", "context", "length"),
    [
        ({"a": ClassConfig(max_input=300), "b": ClassConfig(max_total=700)}, 5000, 700),
        ({"a": ClassConfig()}, 5000, UNDECLARED_PROMPT),
        ({"a": ClassConfig(max_input=9000)}, 512, 508),
    ],
)
def test_the_longest_prompt(classes, context, length):
    """The longest that a class allows, as far as the context goes; bounded where no class says."""
    assert longest_prompt(EngineConfig(classes=classes), context) == length
