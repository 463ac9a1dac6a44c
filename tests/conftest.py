"""For all tests: a property has as much time as it needs. A busy machine is no counterexample."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
