"""What is wrong with a trace file: every line of it, found before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_ERRORS = 200
"""Beyond so many, the file is no such trace, and nobody reads them."""
MOST_TOO_LONG = 20
"""Of sound requests that are too long for a limit, fewer tell enough."""

Located = tuple[str, int, str]
"""File, line (0 = the file as a whole), what is wrong."""

Say = Callable[[str], None]
"""To be called with each thing that is wrong in one place."""


def under(say: Say, path: str) -> Say:
    """``say`` with ``path`` before it."""
    return lambda what: say(f"{path}: {what}")


class TraceError(ValueError):
    """A trace that must not be replayed, with all that was ``found`` in it."""

    def __init__(self, found: Sequence[Located]) -> None:
        super().__init__("\n".join(f"{file}:{line}: {what}" for file, line, what in found))
        self.found = tuple(found)


class Findings:
    """Collects what is wrong while files are read; `refuse` ends the reading if there is anything."""

    def __init__(self, most: int = MOST_ERRORS) -> None:
        self._most = most
        self._found: list[Located] = []
        self._more: dict[str, tuple[int, int]] = {}

    def add(self, file: str, line: int, what: str) -> None:
        if len(self._found) < self._most:
            self._found.append((file, line, what))
        else:
            first, count = self._more.get(file, (line, 0))
            self._more[file] = (first, count + 1)

    def all(self) -> list[Located]:
        more = [
            (file, line, f"and {count:,} more errors from here on")
            for file, (line, count) in self._more.items()
        ]
        return [*self._found, *more]

    def refuse(self) -> None:
        """Raises TraceError if anything was found."""
        if self._found:
            raise TraceError(self.all())
