"""The short way of a read in C, where it could be built; the same in Python everywhere else.

`loadgen._harvest` is optional: an install without a compiler goes without it, and ``HEADRACE_NATIVE=0`` does
so on purpose. Its three classes do what those of `loadgen.log`, `loadgen.lane` and `loadgen.harvest` do, and
work with each other only.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Literal


def _found() -> ModuleType | None:
    if os.environ.get("HEADRACE_NATIVE") == "0":
        return None
    try:
        from loadgen import _harvest
    except ImportError:
        return None
    return _harvest


extension = _found()


def reads() -> Literal["native", "python"]:
    """Which of the two is in use."""
    return "python" if extension is None else "native"
