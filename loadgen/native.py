"""The short way of a read in C, where it could be built; the same in Python everywhere else.

`loadgen._harvest` is optional: an install without a compiler goes without it, and ``HEADRACE_NATIVE=0`` does
so on purpose. Its three classes do what those of `loadgen.log`, `loadgen.lane` and `loadgen.harvest` do, and
work with each other only. So do those of `loadgen.reference._streams`, for the reference server's writes.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Literal


def find(name: str) -> ModuleType | None:
    """A module in C; None where it was not built, or is not wanted. Raises ImportError for one that is there
    and cannot be imported, such as an old one that asks for what is gone."""
    if os.environ.get("HEADRACE_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


INTERFACE = 2
"""Goes up with each change of what the classes in C are told or give."""

extension = find("loadgen._harvest")
if extension is not None and getattr(extension, "INTERFACE", 1) != INTERFACE:
    raise ImportError("loadgen._harvest was built from other sources: build it again, pip install -e .")


def reads() -> Literal["native", "python"]:
    """Which of the two is in use."""
    return "python" if extension is None else "native"
