"""docs/policies.md: the shipped policy-*.yaml show what they say; the page's tables are what they give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policies", ROOT / "docs" / "policies.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


policies = _page()


def test_every_shipped_comparison_is_on_the_page() -> None:
    """A scenario without choices, or a table without a scenario, would be a promise that nobody keeps."""
    shipped = {path.stem for path in (ROOT / "scenarios").glob("policy-*.yaml")}
    on_page = {name for name, _ in policies.tables(policies.PAGE.read_text())}
    assert shipped == set(policies.COMPARED) == on_page
    for choices in policies.COMPARED.values():
        assert sum(choice.naive for choice in choices) == 1
        assert sum(not choice.overrides for choice in choices) == 1


@pytest.mark.parametrize("name", policies.COMPARED)
def test_the_naive_choice_misses_a_gate_and_the_shipped_one_does_not(name: str) -> None:
    """In virtual time; the tables of the page are these very runs."""
    found = policies.results(name)
    for result in found:
        if result.choice.naive:
            assert result.gates("FAIL"), f"{name}: {result.choice.label} misses nothing"
        if not result.choice.overrides:
            assert result.gates("FAIL") == result.gates("INCONCLUSIVE") == [], f"{name} as shipped"
        assert result.summary["invariants"]["failed"] == [], result.choice.label
    assert dict(policies.tables(policies.PAGE.read_text()))[name] == policies.table(found)
