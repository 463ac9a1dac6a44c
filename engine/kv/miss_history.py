"""The bounded memory behind true miss reasons (ENGINE E18): what was lost and why, and what content was
ever cached under which namespace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from engine.kv.blocks import block_digests
from engine.request import Miss, MissReason, Tokens
from engine.telemetry import Meter

CONTENT_ROOT = b"content"
"""Root of content fingerprints: the same chain as block digests, blind to the namespace."""


class MissHistory:
    """Remembers at most ``bound`` lost digests and ``bound`` content fingerprints, the latest ones."""

    def __init__(self, bound: int, meter: Meter) -> None:
        self.bound = bound
        self.complete = True
        """False once something was forgotten: ``never_computed`` may then be untrue."""
        self.on_forgotten: Callable[[bytes], None] = lambda digest: None
        """Called with each lost digest that is forgotten."""
        self._meter = meter
        self._lost: OrderedDict[bytes, MissReason] = OrderedDict()
        self._fingerprints: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def lost(self, digest: bytes, reason: MissReason) -> None:
        """The last copy of this content is gone."""
        self._lost[digest] = reason
        self._lost.move_to_end(digest)
        if len(self._lost) > self.bound:
            forgotten, _ = self._lost.popitem(last=False)
            self._overflow()
            self.on_forgotten(forgotten)

    def stored(self, digest: bytes, root: bytes, fingerprint: bytes) -> None:
        """This content is resident (again) under ``root``."""
        if self._lost:
            self._lost.pop(digest, None)
        roots = self._fingerprints.pop(fingerprint, ())
        if root not in roots:  # two different roots answer "is there another one?" for every asker
            roots = (*roots[-1:], root)
        self._fingerprints[fingerprint] = roots
        if len(self._fingerprints) > self.bound:
            self._fingerprints.popitem(last=False)
            self._overflow()

    def why_lost(self, digest: bytes) -> MissReason | None:
        return self._lost.get(digest)

    def known_elsewhere(self, fingerprint: bytes, root: bytes) -> bool:
        """The same content was cached under another root."""
        return any(known != root for known in self._fingerprints.get(fingerprint, ()))

    def _overflow(self) -> None:
        self.complete = False
        self._meter.inc("headrace_engine_miss_history_overflow_total")


def content_fingerprints(tokens: Tokens[int], block_size: int) -> tuple[bytes, ...]:
    """Fingerprints of the full blocks of ``tokens`` and all before them."""
    return block_digests(CONTENT_ROOT, tokens, block_size)


class MissRuns:
    """Run-length codes reasons block by block."""

    def __init__(self) -> None:
        self._runs: list[tuple[MissReason, int, int, int]] = []
        self._reason: MissReason | None = None
        self._first = 0
        self._blocks = 0
        self._tokens = 0

    def add(self, reason: MissReason, block: int, tokens: int) -> None:
        """The ``tokens`` of block ``block``, the next one, were missed for ``reason``."""
        if reason is not self._reason:
            self._close()
            self._reason, self._first = reason, block
            self._blocks = self._tokens = 0
        self._blocks += 1
        self._tokens += tokens

    def misses(self) -> list[Miss]:
        """All runs so far; ends the coding."""
        self._close()
        self._reason = None
        return [Miss(*run) for run in self._runs]

    def _close(self) -> None:
        if self._reason is not None:
            self._runs.append((self._reason, self._first, self._blocks, self._tokens))
