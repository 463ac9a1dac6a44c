"""How many requests are in flight, integrated exactly (Little's law, MEASUREMENT C35)."""

from __future__ import annotations


class InFlight:
    """A counter and its integral over the window [a, b) in request-ns, taken at each change."""

    def __init__(self, a: int, b: int) -> None:
        self._a, self._b = a, b
        self.now = 0
        self.integral = 0

    def change(self, t: int, by: int) -> None:
        """The counter changes at ``t``; times may be a little out of order, the sum does not mind."""
        self.now += by
        # Each change contributes from t on: the sum over all of them is the integral up to b.
        self.integral += by * (self._b - self.clip(t))

    def clip(self, t: int) -> int:
        return self._a if t < self._a else min(t, self._b)
