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
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.envs import RECIPES, InstallFailed
from benchmarks.peers.measure import measure
from benchmarks.peers.ours import Ours
from benchmarks.peers.picture import picture
from benchmarks.peers.rows import Kept, Row, header, markdown
from benchmarks.peers.session import Session
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
SECONDS = 12.0
QUICK_RATES, QUICK_SECONDS = "200", 3.0
OURS = "headrace"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 also if a tool gave no result, 2 if it could not begin."""
    asked = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every ``finally``
    server_cpus, client_cpus = placed(usable_cores(), 1)
    if not client_cpus:
        return _fail("two cores are needed: one for the tool, one for the reference server")
    raise_descriptor_limit()
    try:
        tools = [_tool(name, asked.envs) for name in asked.only]
        if not asked.install_only:
            _compare(asked, tools, client_cpus[0], server_cpus[0])
    except (InstallFailed, PullError, ServerFailed) as error:
        return _fail(str(error))
    return 0


def _fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _say(words: str) -> None:
    print(words, flush=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    known = (*RECIPES, OURS)
    add = parser.add_argument
    add("--envs", type=Path, default=cache_folder() / "peers", help="where the peers are [%(default)s]")
    add("--out", type=Path, default=Path("runs/peers"), help="for all results [%(default)s]")
    add("--only", default=",".join(known), help="tools [%(default)s]")
    add("--rates", help=f"streams/s [{RATES}]")
    add("--seconds", type=float, help=f"that count at each rate [{SECONDS:g}]")
    add("--tokens", type=int, default=50, help="of each stream [%(default)s]")
    add("--arrival", choices=("poisson", "constant"), default="poisson")
    add("--quick", action="store_true", help=f"{QUICK_RATES} streams/s for {QUICK_SECONDS:g} s")
    add("--fresh", action="store_true", help="measure again what --out has")
    add("--install-only", action="store_true", help="install the peers and end")
    asked = parser.parse_args(argv)
    asked.only = asked.only.split(",")
    if strangers := [name for name in asked.only if name not in known]:
        parser.error(f"--only knows {', '.join(known)}, not {', '.join(strangers)}")
    rates = asked.rates or (QUICK_RATES if asked.quick else RATES)
    asked.rates = sorted(float(word) for word in rates.split(","))
    asked.seconds = asked.seconds or (QUICK_SECONDS if asked.quick else SECONDS)
    asked.out, asked.envs = asked.out.resolve(), asked.envs.resolve()
    return asked


def _tool(name: str, envs: Path) -> Tool:
    if name == OURS:
        return Ours(version("headrace"))
    return RECIPES[name].install(envs, _say)


def _compare(asked: argparse.Namespace, tools: Sequence[Tool], core: int, server_core: int) -> None:
    out: Path = asked.out
    model, hub = pulled_model(), out / "hub"
    write_hub(model, hub)
    ask = Ask(
        rate=asked.rates[0],
        script=Script(ttft=0.05, itl=0.01),
        seconds=asked.seconds,
        warmup=min(2.0, asked.seconds),
        cooldown=1.0,
        tokens=asked.tokens,
        arrival=asked.arrival,
        core=core,
        model=model,
        hub=hub,
        hub_name=HUB_NAME,
    )
    kept = Kept.read(out / "rows.json", asked.fresh)
    session = Session(ask, asked.rates, kept, partial(measure, server_core, out), _say)
    facts = manifest()
    host = facts["host"]
    _say(f"{facts['wall_time'][:16]} UTC  {host['cpu']}, {host['usable_cores']} cores  {session.settings}")
    _say(
        ", ".join(f"{tool.name} {tool.version}" for tool in tools)
        + f" on core {core}, server on {server_core}"
    )
    _say(header())
    found = {tool.name: session.all_of(tool) for tool in tools}
    rows = [row for of_tool, _ in found.values() for row in of_tool]
    _write(out, rows)
    said = {
        "benchmark": "peers",
        "settings": session.settings,
        "script": asdict(ask.script),
        "cores": {"tool": core, "server": server_core},
        "skipped": {name: skipped for name, (_, skipped) in found.items() if skipped},
        "rows": [row.as_dict() for row in rows],
        "manifest": facts,
    }
    _say(json.dumps(said))


def _write(out: Path, rows: Sequence[Row]) -> None:
    (out / "table.md").write_text(markdown(rows))
    drawn = picture(rows)
    if drawn is not None:
        (out / "peers.svg").write_text(drawn)


if __name__ == "__main__":
    sys.exit(main())
