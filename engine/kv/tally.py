"""A bag of digests."""

from __future__ import annotations


class Tally:
    """Counts how often each is in; what is in no more is not kept."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}

    def add(self, *digests: bytes) -> None:
        for digest in digests:
            self.counts[digest] = self.counts.get(digest, 0) + 1

    def drop(self, *digests: bytes) -> None:
        """Each must be in."""
        for digest in digests:
            left = self.counts[digest] - 1
            if left:
                self.counts[digest] = left
            else:
                del self.counts[digest]

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.counts
