"""Values with which no engine could work are named before one starts, or changes to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.config_bounds import problems
from engine.config_io import config_from_dict, config_to_dict
from engine.fleet.controls import changed
from engine.plain import PlainError


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"health": {"eject_after": 0.25}}, "health.eject_after: longer than health.heartbeat"),
        ({"health": {"suspect_after": 0.1}}, "health.suspect_after: longer than health.heartbeat"),
        ({"health": {"heartbeat": 5.0}}, "health.eject_after: longer than health.heartbeat, which is 5 s"),
        ({"cost": {"a": -1.0, "b": 2.0}}, "cost.a: at least 0, not -1.0"),
        ({"cost": {"c": -1.0}}, "cost.c: at least 0, not -1.0"),
        ({"cost": {"g1": -1.0}}, "cost.g1: at least 0, not -1.0"),
        ({"classes": {}}, "classes: at least one"),
        ({"model": "simulated", "adapters": {"simulated": "/x"}}, "adapters.simulated: a name that"),
        ({"adapters": {"": "/x"}}, "adapters.: a name that"),
    ],
)
def test_what_no_engine_could_work_with_is_named(wrong: dict[str, Any], said: str) -> None:
    """Each of these would eject every worker, wait for ever or answer every request with 500."""
    with pytest.raises(PlainError) as refused:
        config_from_dict(wrong)
    assert said in str(refused.value)


def test_defaults_are_fine_and_survive_the_file() -> None:
    """A configuration is its own plain form read again."""
    assert list(problems(EngineConfig())) == []
    assert config_from_dict(config_to_dict(EngineConfig())) == EngineConfig()


def test_a_running_engine_cannot_be_told_to_eject_its_workers() -> None:
    """A change is judged as a start is: nothing is changed."""
    with pytest.raises(ValueError, match=r"health.eject_after: longer than health.heartbeat"):
        changed(EngineConfig(), {"eject_after": 0.01})
    slow = replace(EngineConfig().health, heartbeat=1.0, suspect_after=3.0, eject_after=6.0)
    after, _ = changed(replace(EngineConfig(), health=slow), {"suspect_after": 2.0})
    assert after.health.suspect_after == 2.0
