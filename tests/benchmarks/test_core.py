"""What a step costs is counted in calls: a number that no busy machine can change."""

from __future__ import annotations

import pytest

from benchmarks import core, gate


def test_a_step_does_not_grow_with_the_pool() -> None:
    """Full of cached blocks, a pool a hundred times as large costs the same calls."""
    costs = core.over_pools(20, most=100_000)
    counted = {cost.calls for cost in costs.values()}
    assert len(costs) == 3
    assert max(counted) - min(counted) <= 16, costs  # a pass over a few heads more or less


def test_a_step_does_not_grow_with_its_backlog() -> None:
    """A thousand requests that wait cost no call more than a hundred."""
    costs = core.over_queues(20, most=1_000)
    assert costs[1_000].calls == costs[100].calls
    assert costs[100].calls - costs[0].calls < 60


def test_a_step_grows_in_proportion_to_what_runs() -> None:
    """Four times the running requests take at most four times the calls."""
    costs = core.over_running(20, most=256)
    assert costs[64].calls < 4.2 * costs[16].calls
    assert costs[256].calls < 4.2 * costs[64].calls


@pytest.mark.parametrize("message", ["token", "end"])
def test_a_message_does_not_grow_with_the_gateways_queue(message: str) -> None:
    """The gateway looks at a bounded part of its queue."""
    few, many = (gate.message_calls(waiting, message) for waiting in (100, 2_000))
    assert many <= few + 40


def test_the_long_prompt_is_found_whole() -> None:
    """The match of a prompt of many blocks reads them all but the last."""
    assert core.prefix_match(4_000, 3)["match"] > 0
