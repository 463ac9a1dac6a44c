"""What each policy costs and buys: every policy-*.yaml with each choice that it compares, in virtual time.

    python docs/policies.py [NAME ..]     # runs them and writes their tables into docs/policies.md

Virtual runs are the same everywhere, so tests/headrace/test_policies.py compares the tables to the digit.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.console import Silent
from headrace.run import Options, run_scenario

PAGE = Path(__file__).parent / "policies.md"
_ENGINE = "target.engine"
HEAD = (
    *("choice", "gates", "attained", "first token p50, p90", "end to end p90"),
    *("computed again", "from cache"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a scenario. No ``overrides``: as shipped."""

    label: str
    overrides: tuple[str, ...] = ()
    naive: bool = False
    """The choice that the scenario's gates are there to fail."""


def _set(label: str, naive: bool = False, **values: object) -> Choice:
    keys = (f"{_ENGINE}.{key.replace('__', '.')}={value}" for key, value in values.items())
    return Choice(label, tuple(keys), naive)


COMPARED: Mapping[str, tuple[Choice, ...]] = {
    "policy-thrash": (
        _set("admission prompt", naive=True, admission__policy="prompt"),
        _set("admission estimate", admission__policy="estimate"),
        _set("admission peak", admission__policy="peak"),
        Choice("admission lifetime"),
    ),
    "policy-inversion": (
        _set("order fcfs", naive=True, queue__order="fcfs"),
        Choice("order priority"),
        _set("order priority, priority_preemption", priority_preemption="true", admission__policy="prompt"),
    ),
    "policy-starvation": (
        _set("order priority, aging 1h", naive=True, queue__aging="1h"),
        Choice("order priority, aging 5s"),
        _set("order fcfs", queue__order="fcfs"),
    ),
    "policy-long-prompts": (
        _set(
            "whole prompts in one step",
            naive=True,
            scheduler__prefill_chunk=8192,
            scheduler__max_step_tokens=8192,
        ),
        Choice("chunks of 192, steps of 256"),
        _set("chunks of 64, steps of 96", scheduler__prefill_chunk=64, scheduler__max_step_tokens=96),
    ),
    "policy-short-behind-long": (
        _set("order fcfs", naive=True, queue__order="fcfs"),
        Choice("order shortest_uncached"),
    ),
    "policy-one-tenant": (
        _set("order fcfs", naive=True, queue__order="fcfs"),
        Choice("order fair"),
        _set("order fcfs, bulk has 4 active", queue__order="fcfs", tenants="{bulk: {max_active: 4}}"),
    ),
    "policy-deadlines": (
        _set("order fcfs", naive=True, queue__order="fcfs"),
        Choice("order edf"),
    ),
    "policy-idle-sessions": (
        _set("eviction lru", naive=True, cache__eviction="lru"),
        Choice("eviction ttl, sessions 25 s"),
        _set("eviction reuse", cache__eviction="reuse"),
        _set("eviction footprint", cache__eviction="footprint"),
        _set("eviction priority", cache__eviction="priority"),
    ),
    "policy-tiers": (
        _set("device only", naive=True, cache__tiers__host="null"),
        Choice("host memory below it"),
    ),
    "policy-swap": (
        _set("preemption recompute", naive=True, preemption="recompute"),
        Choice("preemption swap"),
        _set("admission lifetime", admission__policy="lifetime", preemption="recompute"),
    ),
}


@dataclass(frozen=True, slots=True)
class Result:
    choice: Choice
    summary: Mapping[str, Any]

    def gates(self, verdict: str) -> list[str]:
        """Texts of the gates with this verdict."""
        return [gate["text"] for gate in self.summary["gates"] if gate["verdict"] == verdict]

    def cells(self) -> tuple[str, ...]:
        classes, engine = self.summary["classes"], self.summary["engine"]
        read = sum(engine["hit_tokens"].values()) / max(1, engine["prompt_tokens"])
        missed = [f"`{text}` missed" for text in self.gates("FAIL")]
        missed += [f"`{text}` undecided" for text in self.gates("INCONCLUSIVE")]
        return (
            self.choice.label,
            "; ".join(missed) or "pass",
            _each(classes, lambda block: _share(block["attainment"])),
            _each(classes, lambda block: _times(block, "ttft_sched", "p50", "p90")),
            _each(classes, lambda block: _times(block, "e2e_sched", "p90")),
            f"{engine['recomputed_tokens']:,}",
            _share(read),
        )


def _each(classes: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    if len(classes) == 1:
        return show(next(iter(classes.values())))
    return "; ".join(f"{name} {show(block)}" for name, block in classes.items())


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _times(block: Mapping[str, Any], metric: str, *stats: str) -> str:
    values = block["metrics"].get(metric) or {}
    return ", ".join("-" if values.get(stat) is None else f"{values[stat]:.2f} s" for stat in stats)


def results(name: str) -> list[Result]:
    """Run every choice of a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            Result(choice, _summary(name, choice, Path(folder) / str(index)))
            for index, choice in enumerate(COMPARED[name])
        ]


def _summary(name: str, choice: Choice, out: Path) -> Mapping[str, Any]:
    options = Options(out=out, virtual=True, overrides=choice.overrides)
    return run_scenario(Path(name), options, Silent()).summary


def table(found: Sequence[Result]) -> str:
    rows = (HEAD, tuple("-" for _ in HEAD), *(result.cells() for result in found))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


_BLOCK = re.compile(r"(<!-- runs: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(page: str) -> Iterator[tuple[str, str]]:
    """(scenario, table) of every block of the page."""
    for block in _BLOCK.finditer(page):
        yield block[2], block[0][len(block[1]) : -len(block[3])]


def main(names: Sequence[str]) -> None:
    made = {name: table(results(name)) for name in names or COMPARED}
    page = PAGE.read_text()
    PAGE.write_text(_BLOCK.sub(lambda b: f"{b[1]}{made.get(b[2], b[0][len(b[1]) : -len(b[3])])}{b[3]}", page))


if __name__ == "__main__":
    main(sys.argv[1:])
