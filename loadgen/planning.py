"""How a plan is drawn: sessions in order of their opening, each with its shots.

Every session waits in one heap until it is the earliest. A user of a closed loop has one there at a time;
the next is put there once the one before is planned:

```
user 0   |-- s0 --|  think  |-- s2 --|  think  |-- ..      Shot.parent: last turn of the one before
user 1       |-- s1 --|  think  |-- ..                     Shot.fresh: however that one ended
```
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.load import LEAST_REQUEST_S, ClosedLoop, Load, Opening, Turn
from loadgen.shot import Phases, Shot
from loadgen.streams import stream
from loadgen.tenants import draw, draw_some

_LEAST_NS = round(LEAST_REQUEST_S * 1e9)

_Waiting = tuple[int, int, int]
"""(opens at ns, index within its load, number of its load): the order of sessions in a plan."""


def plan_shots(loads: Sequence[Load], phases: Phases, seed: int, slices: int) -> Iterator[Shot]:
    """Shots in order of id, drawn from named streams of ``seed``. A sub-agent's session has the number
    after that of the session it belongs to, in order of appearance."""
    lines = [_Line.of(load, number, phases, seed, slices) for number, load in enumerate(loads)]
    waiting = [opens for line in lines for opens in line.openings]
    heapq.heapify(waiting)
    shots = sessions = 0
    while waiting:
        due_ns, index, number = heapq.heappop(waiting)
        opening = lines[number].opening(due_ns, index, shots)
        made = lines[number].session(opening, sessions)
        following = lines[number].chained(opening, made)
        if following is not None:
            heapq.heappush(waiting, following)
        shots += len(made)
        sessions = 1 + max(shot.session for shot in made)
        yield from made


@dataclass(slots=True)
class _Source:
    """Seeds the stream of a session when it is first drawn from."""

    seed: int
    number: int
    index: int
    made: np.random.Generator | None = None

    def __call__(self) -> np.random.Generator:
        if self.made is None:
            self.made = stream(self.seed, "session", self.number, self.index)
        return self.made


@dataclass(slots=True)
class _User:
    """Where a user of a closed loop stands."""

    planned: int = 0
    last: int | None = None
    """Id of the last turn planned so far."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One load while it is being planned. Those who come are its users in a closed loop, else its
    sessions."""

    load: Load
    number: int
    phases: Phases
    seed: int
    slices: int
    openings: list[_Waiting]
    tenants: list[str]
    """Of each who comes, where they are drawn."""
    adapters: list[str | None]
    """The same."""
    users: list[_User]
    loop: ClosedLoop | None

    @classmethod
    def of(cls, load: Load, number: int, phases: Phases, seed: int, slices: int) -> _Line:
        span = phases.warmup + phases.window + phases.cooldown
        due = load.arrival.due_times(span, stream(seed, "arrival", number)).tolist()
        drawn = load.tenants and draw(load.tenants, len(due), stream(seed, "tenant", number))
        return cls(
            load,
            number,
            phases,
            seed,
            slices,
            openings=[(at, index, number) for index, at in enumerate(due)],
            tenants=drawn or [],
            adapters=draw_some(load.adapters, len(due), stream(seed, "adapter", number))
            if load.adapters
            else [],
            users=[_User() for _ in due] if load.closed else [],
            loop=load.arrival if isinstance(load.arrival, ClosedLoop) else None,
        )

    def opening(self, due_ns: int, index: int, first_id: int) -> Opening:
        source = _Source(self.seed, self.number, index)
        return Opening(index, due_ns, first_id, f"{self.seed}/{self.number}", source)

    def session(self, at: Opening, number: int) -> list[Shot]:
        """The shots of the session that opens at ``at``; it and its sub-agents are numbered from
        ``number`` on."""
        load, turns = self.load, self.load.workload.session(at)
        phase, who = self.phases.of(at.due_ns), self._who(at)
        return [
            Shot(
                id=at.first_id + k,
                class_=load.class_,
                phase=phase,
                session=place.session,
                turn=place.turn,
                prompt=turn.prompt,
                n_in_asked=sum(part.tokens for part in turn.prompt),
                n_out_asked=turn.n_out,
                due_ns=at.due_ns if place.parent is None else None,
                after_ns=None if place.parent is None else turn.after_ns or 0,
                parent=None if place.parent is None else at.first_id + place.parent,
                branch=turn.branch,
                tenant=self.tenants[who] if self.tenants else load.tenant,
                rank=load.rank,
                slice=(who + self.number) % self.slices,
                adapter=self.adapters[who] if self.adapters and turn.adapter is None else turn.adapter,
            )
            for k, (turn, place) in enumerate(zip(turns, _places(turns, number), strict=True))
        ]

    def chained(self, at: Opening, made: list[Shot]) -> _Waiting | None:
        """In a closed loop, let the session ``made`` wait for its user's one before, and say when the
        next one may open."""
        if self.loop is None:
            return None
        user, think_ns = self.users[self._who(at)], round(self.loop.think * 1e9)
        if user.last is not None:
            made[0] = replace(made[0], due_ns=None, after_ns=think_ns, parent=user.last, fresh=True)
        own = [shot for shot in made if shot.session == made[0].session]
        user.planned, user.last = user.planned + len(made), own[-1].id
        thinking = sum(shot.after_ns or 0 for shot in own[1:])
        opens_ns = at.due_ns + len(own) * _LEAST_NS + thinking + think_ns
        most = self.loop.requests
        more = opens_ns < self.phases.load_ns if most is None else user.planned < most
        return (opens_ns, at.index + len(self.users), self.number) if more else None

    def _who(self, at: Opening) -> int:
        return at.index % len(self.users) if self.users else at.index


@dataclass(frozen=True, slots=True)
class _Place:
    session: int
    turn: int
    parent: int | None
    """Index of the turn that it follows; None for the one that opens the session."""


def _places(turns: Sequence[Turn], number: int) -> list[_Place]:
    """Where each turn belongs. Raises ValueError for a turn that follows none before it."""
    if not turns:
        raise ValueError("a workload made a session without a turn")
    sessions: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    places: list[_Place] = []
    for k, turn in enumerate(turns):
        session = sessions.setdefault(turn.lineage, number + len(sessions))
        before = last.get((turn.lineage, turn.branch))
        parent = turn.parent if turn.parent is not None else k - 1 if before is None else before
        if k and not 0 <= parent < k:
            raise ValueError(f"turn {k} of a session follows turn {parent}, which is not before it")
        # A turn that waits for a sub-agent comes after the turn before it all the same.
        path = parent if k and places[parent].session == session else before
        depth = 0 if path is None else places[path].turn + 1
        places.append(_Place(session, depth, parent if k else None))
        last[turn.lineage, turn.branch] = k
    return places


def last_of_users(shots: Iterable[Shot]) -> set[int]:
    """Ids of the last turns that are planned for the users of closed loops, of those with more than one
    session. A user who has sent that one has nothing left to ask: the load has become smaller than said."""
    user_of: dict[int, int] = {}
    session: dict[int, int] = {}
    last: dict[int, int] = {}
    for shot in shots:
        user = user_of[shot.id] = shot.id if shot.parent is None else user_of[shot.parent]
        if shot.fresh:
            session[user] = shot.session
        if session.get(user) == shot.session:
            last[user] = shot.id
    return set(last.values())
