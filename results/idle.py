"""Users of a closed loop who came to the end of what was planned for them: a smaller load than was said."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from results.view import View


@dataclass(frozen=True, slots=True)
class Idle:
    """``users`` of ``of`` users of a class had nothing left to ask, the first of them from ``since_s`` on
    (s since t0)."""

    class_: str
    users: int
    of: int
    since_s: float

    def __str__(self) -> str:
        return (
            f"class {self.class_}: {self.users} of {self.of} users had nothing left to ask from"
            f" {self.since_s:.3g} s on"
        )


def idle_users(view: View) -> list[Idle]:
    """By class, those who would have asked again before the window's end (see `Judging.users`)."""
    if not view.judging.users:
        return []
    closed = pd.Series(view.data["closed"].to_numpy(), index=view.data["id"].to_numpy()).dropna()
    found = []
    for name, users in view.judging.users.items():
        again = closed.reindex(list(users.last)).dropna() + users.think_ns
        early = again[again < view.judging.window[1]]
        if len(early):
            found.append(Idle(name, len(early), len(users.last), float(early.min()) * 1e-9))
    return found
