"""All runs of one command: each tool at rising rates, what was measured before reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.peers.rows import Kept, Row, gives_up, line
from benchmarks.peers.tool import Ask, Tool


@dataclass(frozen=True, slots=True)
class Session:
    """``ask`` holds for each run but for its rate; ``measure`` makes the row of one run."""

    ask: Ask
    rates: Sequence[float]
    kept: Kept
    measure: Callable[[Tool, Ask, str], Row]
    say: Callable[[str], None]

    @property
    def settings(self) -> str:
        """What rows must share to stand in one table."""
        ask, script = self.ask, self.ask.script
        return (
            f"{ask.arrival}, {ask.tokens} tokens, TTFT {script.ttft * 1e3:g} ms, "
            f"ITL {script.itl * 1e3:g} ms, {ask.seconds:g} s after {ask.warmup:g} s"
        )

    def all_of(self, tool: Tool) -> tuple[list[Row], list[float]]:
        """Its rows in rising order, and the rates that were skipped since it did not reach lower ones."""
        rows: list[Row] = []
        for k, rate in enumerate(self.rates):
            if gives_up(rows):
                skipped = list(self.rates[k:])
                self.say(
                    f"{tool.name}: {', '.join(f'{one:g}' for one in skipped)} skipped, see the rows above"
                )
                return rows, skipped
            rows.append(self._row(tool, rate))
            self.say(line(rows[-1]))
        return rows, []

    def _row(self, tool: Tool, rate: float) -> Row:
        kept = self.kept.find(tool.name, tool.version, rate, self.settings)
        if kept is not None:
            return kept
        row = self.measure(tool, replace(self.ask, rate=rate), self.settings)
        self.kept.add(row)
        return row
