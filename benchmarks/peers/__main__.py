"""Load generators side by side against the reference server: true times and rates by its own log.

    python -m benchmarks.peers            # from the root of the repository
    python -m benchmarks.peers --quick    # one rate, 3 s

Installs the peers at the first time (README.md of this folder). Each tool runs on one core, the server on
another. Prints a table, then one JSON line; leaves rows.json, table.md and peers.svg in --out, and goes on
where it was interrupted. Run it on an idle machine: the load average stands in each line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.envs import RECIPES, InstallFailed
from benchmarks.peers.measure import measure
from benchmarks.peers.ours import Ours
from benchmarks.peers.picture import picture
from benchmarks.peers.rows import Kept, Row, gives_up, header, line, markdown
from benchmarks.peers.tokenizer import HUB_NAME, pulled_model, write_hub
from benchmarks.peers.tool import Ask, Tool
from engine.model.pull import PullError, cache_folder
from headrace.doctor import placed
from headrace.machine import usable_cores
from headrace.manifest import manifest
from loadgen.foresight import raise_descriptor_limit
from loadgen.reference.group import ServerFailed
from loadgen.reference.script import Script

RATES = "100,200,400,800,1200,1600,2000"
QUICK_RATES, QUICK_S = "200", 3.0
OURS = "headrace"
SCRIPT = Script(ttft=0.05, itl=0.01)


def main() -> int:
    asked = _arguments()
    server_cpus, client_cpus = placed(usable_cores(), 1)
    if not client_cpus:
        return _fail("two cores are needed: one for the tool, one for the reference server")
    raise_descriptor_limit()
    try:
        tools = [_tool(name, asked.envs) for name in asked.only]
        if asked.install_only:
            return 0
        model = pulled_model()
    except (InstallFailed, PullError) as error:
        return _fail(str(error))
    hub = asked.out / "hub"
    write_hub(model, hub)
    ask = Ask(
        rate=asked.rates[0],
        script=SCRIPT,
        seconds=asked.seconds,
        warmup=min(2.0, asked.seconds),
        cooldown=1.0,
        tokens=asked.tokens,
        arrival=asked.arrival,
        core=client_cpus[0],
        model=model,
        hub=hub.resolve(),
        hub_name=HUB_NAME,
    )
    session = Session(
        ask, asked.rates, server_cpus[0], asked.out, Kept.read(asked.out / "rows.json", asked.fresh)
    )
    facts = manifest()
    print(f"{facts['wall_time'][:19]}Z  {facts['host']['cpu']}, {facts['host']['usable_cores']} cores")
    print(header(), flush=True)
    try:
        found = [session.all_of(tool) for tool in tools]
    except ServerFailed as error:
        return _fail(str(error))
    _conclude(
        session,
        facts,
        [row for rows, _ in found for row in rows],
        {t.name: s for t, (_, s) in zip(tools, found, strict=True) if s},
    )
    return 0


def _fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--envs", type=Path, default=cache_folder() / "peers", help="of the peers [%(default)s]"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/peers"), help="for all results [%(default)s]")
    parser.add_argument("--only", default=",".join((*RECIPES, OURS)), help="tools [%(default)s]")
    parser.add_argument("--rates", help=f"streams/s, rising [{RATES}]")
    parser.add_argument("--seconds", type=float, help="that count at each rate [12]")
    parser.add_argument("--tokens", type=int, default=50, help="of each stream [%(default)s]")
    parser.add_argument("--arrival", choices=("poisson", "constant"), default="poisson")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_RATES} streams/s for {QUICK_S:g} s only"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what --out has")
    parser.add_argument("--install-only", action="store_true", help="install the peers and end")
    asked = parser.parse_args()
    asked.only = asked.only.split(",")
    if strangers := [name for name in asked.only if name not in (*RECIPES, OURS)]:
        parser.error(f"--only knows {', '.join((*RECIPES, OURS))}, not {', '.join(strangers)}")
    words = asked.rates or (QUICK_RATES if asked.quick else RATES)
    asked.rates = sorted(float(word) for word in words.split(","))
    asked.seconds = asked.seconds or (QUICK_S if asked.quick else 12.0)
    asked.out = asked.out.resolve()
    asked.envs = asked.envs.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    return asked


def _tool(name: str, envs: Path) -> Tool:
    if name == OURS:
        return Ours(version("headrace"))
    return RECIPES[name].install(envs, lambda words: print(words, file=sys.stderr, flush=True))


@dataclass(frozen=True, slots=True)
class Session:
    """All runs of one command; ``ask`` holds for each but for its rate."""

    ask: Ask
    rates: Sequence[float]
    server_core: int
    out: Path
    kept: Kept

    @property
    def settings(self) -> str:
        ask = self.ask
        return f"{ask.arrival}, {ask.tokens} tokens, {ask.warmup:g} + {ask.seconds:g} s"

    def all_of(self, tool: Tool) -> tuple[list[Row], list[float]]:
        """Its rows in rising order, and the rates that were skipped since it did not reach lower ones."""
        rows: list[Row] = []
        for k, rate in enumerate(self.rates):
            if gives_up(rows):
                skipped = list(self.rates[k:])
                print(f"{tool.name}: {', '.join(f'{one:g}' for one in skipped)} skipped")
                return rows, skipped
            rows.append(self._row(tool, rate))
            print(line(rows[-1]), flush=True)
        return rows, []

    def _row(self, tool: Tool, rate: float) -> Row:
        kept = self.kept.find(tool.name, tool.version, rate, self.settings)
        if kept is not None:
            return kept
        row = measure(tool, replace(self.ask, rate=rate), self.server_core, self.out, self.settings)
        self.kept.add(row)
        return row


def _conclude(
    session: Session, facts: dict[str, Any], rows: Sequence[Row], skipped: dict[str, list[float]]
) -> None:
    (session.out / "table.md").write_text(markdown(rows))
    drawn = picture(rows)
    if drawn is not None:
        (session.out / "peers.svg").write_text(drawn)
    said = {
        "benchmark": "peers",
        "settings": session.settings,
        "script": asdict(SCRIPT),
        "cores": {"server": session.server_core, "tool": session.ask.core},
        "skipped": skipped,
        "rows": [row.as_dict() for row in rows],
        "manifest": facts,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    sys.exit(main())
