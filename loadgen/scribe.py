"""The bodies of a load process: what is sent, with the live answers that later turns quote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from loadgen.plan import PhaseName, Phases, Shot
from loadgen.render import Rendered, Renderer
from loadgen.turns import Told, Turns


class Scribe:
    """Writes the bodies, with the live answers that they quote; an answer is kept until the last turn of its
    conversation is over."""

    def __init__(self, shots: Sequence[Shot], phases: Phases, renderer: Renderer) -> None:
        self.shots = {shot.id: shot for shot in shots}
        self.renderer = renderer
        self.turns = Turns(shots, phases)
        self._phases = phases
        self._root: dict[int, int] = {}
        self._open: dict[int, int] = defaultdict(int)
        for shot in shots:  # parents come before
            if shot.parent is not None or self.turns.follow(shot.id):
                before = None if shot.fresh else shot.parent
                self._root[shot.id] = root = shot.id if before is None else self._root[before]
                self._open[root] += 1
        self._texts: dict[int, dict[int, str]] = defaultdict(dict)
        self._opened_in: dict[int, PhaseName] = {}

    def render(self, shot: int, attempt: int) -> Rendered:
        root = self._root.get(shot, shot)
        planned = self.shots[shot]
        if (phase := self._opened_in.get(root)) is not None:
            planned = replace(planned, phase=phase)  # its nonce is that of the phase it really began in
        return self.renderer.render(planned, self._texts.get(root, {}), attempt)

    def ended(self, shot: int, text: str, told: Told, t0: int) -> list[int]:
        """A shot that others follow is over; returns the turns that come now."""
        self._texts[self._root[shot]][shot] = text
        return self.passed(shot, told, t0)

    def passed(self, shot: int, told: Told, t0: int) -> list[int]:
        """The same for one that was never sent."""
        coming = self.turns.after(shot, told, t0).due
        for later, due in coming:
            if later.fresh:
                self._opened_in[later.id] = self._phases.of(due - t0)
        return [later.id for later, _ in coming]

    def over(self, shot: int) -> None:
        """``shot`` has its last record; with the last one of a conversation its texts go."""
        root = self._root.get(shot)
        if root is None:
            return
        self._open[root] -= 1
        if not self._open[root]:
            self._texts.pop(root, None)
            self._opened_in.pop(root, None)
