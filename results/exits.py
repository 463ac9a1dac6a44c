"""How a run ends: verdict, exit code and the last line (MEASUREMENT 9, JOINTS 7)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from results.deciding import FAIL, INCONCLUSIVE
from results.idle import idle_users
from results.run import RunData
from results.validity import Health
from results.view import View

Verdict = Literal["pass", "fail", "inconclusive", "error"]

OK, FAILED, USAGE, TARGET, OPEN = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Ending:
    """``reason`` says in words why it is not a plain pass; None if it is."""

    verdict: Verdict
    exit: int
    reason: str | None


def ending(data: RunData, view: View, client: Health, gates: list[dict[str, Any]]) -> Ending:
    """3 before 1 before 4; 2 never comes this far."""
    if data.target_error:
        return Ending("error", TARGET, data.target_error)
    if client.verdict != "invalid" and _none_completed(view):
        return Ending("error", TARGET, "no request completed, and the client was not at fault")
    failed = [g["text"] for g in gates if g["verdict"] == FAIL]
    if failed:
        return Ending("fail", FAILED, f"{len(failed)} of {len(gates)} gates failed")
    reason = _why_open(data, view, client, gates)
    if reason is not None:
        return Ending("inconclusive", OK if data.judging.allow_inconclusive else OPEN, reason)
    return Ending("pass", OK, None)


def _none_completed(view: View) -> bool:
    """Nothing completed although something was sent and not merely cut off by the end of the run."""
    tried = ~view.marks.excluded & ~view.marks.cancelled
    return bool(tried.any()) and not bool(view.marks.completed.any())


def _why_open(data: RunData, view: View, client: Health, gates: list[dict[str, Any]]) -> str | None:
    if data.interrupted:
        return "the run was interrupted"
    if data.incomplete:
        return data.incomplete
    if client.verdict == "invalid" or (data.judging.strict and client.verdict == "degraded"):
        return f"the client was {client.verdict} ({', '.join(client.reasons)})"
    if not view.marks.completed.any():
        return "no request completed"
    unseen = [f["id"] for f in data.faults if f.get("proven") is None or f.get("error")]
    if unseen:
        return f"not played as scripted: fault {', '.join(map(str, unseen))}"
    if idle := idle_users(view):
        return f"not played as scripted: {'; '.join(map(str, idle))}"
    undecided = [g for g in gates if g["verdict"] == INCONCLUSIVE]
    if undecided:
        return f"{len(undecided)} of {len(gates)} gates could not be decided"
    return None


def last_line(summary: dict[str, Any], run: str) -> str:
    """The JSON line that closes every command on stdout."""
    return json.dumps(
        {
            "verdict": summary["verdict"],
            "client": summary["client"]["verdict"],
            "interrupted": summary["interrupted"],
            "exit": summary["exit"],
            "run": run,
        }
    )
