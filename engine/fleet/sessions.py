"""Where each session was served last (FLEET F24): it breaks ties, as long as that worker keeps its cache."""

from __future__ import annotations

from collections import OrderedDict

MAX_SESSIONS = 65_536


class Sessions:
    """Session -> worker, with the incarnation that it had. Who was not heard of for longest is forgotten."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def last(self, session: str | None) -> tuple[int, str] | None:
        """(worker, incarnation), None if nothing is known."""
        return self._last.get(session) if session is not None else None

    def remember(self, session: str | None, worker: int, incarnation: str | None) -> None:
        if session is None or incarnation is None:
            return
        self._last[session] = worker, incarnation
        self._last.move_to_end(session)
        if len(self._last) > MAX_SESSIONS:
            self._last.popitem(last=False)

    def forget(self, worker: int) -> None:
        """Affinity is void after an ejection or a new epoch."""
        for session in [s for s, (w, _) in self._last.items() if w == worker]:
            del self._last[session]
