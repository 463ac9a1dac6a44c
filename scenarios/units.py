"""How a person writes a quantity, and how it is read and written back.

A dataclass field says its unit in ``Annotated`` metadata (``Annotated[float, "s"]``); the rules of the
four units stand here. ``parse`` and ``write`` are inverse to each other, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

_SHORT = 6
"""Characters that a quantity may take before another unit is tried."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of quantity: its suffixes with (multiply, divide), and how errors name it.

    ``kb`` is 1,000 bytes and ``KiB`` 1,024. Divisors rather than fractions keep ``250ms`` exactly 0.25.
    """

    noun: str
    suffixes: Mapping[str, tuple[float, float]]
    base: str
    example: str
    whole: bool = False
    plain: bool = False
    """A bare number is accepted too (a share may be 0.1)."""
    most: float = 1e9
    """The largest value; beyond, ns and token counts would not fit their columns any more."""

    @property
    def pattern(self) -> str:
        """What the text must match: for the JSON Schema of editors."""
        return rf"^\s*{_NUMBER}\s*({'|'.join(re.escape(s) for s in self.suffixes)})\s*$"

    def parse(self, value: Any) -> float | int:
        """The value in the base unit. Raises ValueError that says how to write it."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"expected {self.noun} such as {self.example}, found {value!r}")
        text = str(value)
        if isinstance(value, int | float) or re.fullmatch(_NUMBER, text.strip()):
            return self._bare(text)
        found = re.fullmatch(rf"\s*({_NUMBER})\s*(\S+)\s*", text)
        if found is None or found[2] not in self.suffixes:
            raise ValueError(f"{text!r} is not {self.noun} (write {self.example}; {self._units()})")
        times, by = self.suffixes[found[2]]
        return self._checked(float(found[1]) * times / by, text)

    def _bare(self, text: str) -> float | int:
        if not self.plain:
            raise ValueError(f"missing unit (write {text.strip()}{self.base}; {self._units()})")
        return self._checked(float(text), text)

    def _units(self) -> str:
        return "units " + " ".join(self.suffixes)

    def _checked(self, number: float, text: str) -> float | int:
        if self.plain and not 0 <= number <= 1:
            raise ValueError(f"{text!r} is not {self.noun}: it lies between 0% and 100% (or 0 and 1)")
        if number > self.most:
            raise ValueError(f"{text!r} is too much: at most {self.most:g}{self.base}")
        return round(number) if self.whole else number

    def write(self, value: float) -> str:
        """A text that reads back as the very same value: short, and in the first unit where that will do."""
        texts = []
        for suffix, (times, by) in self.suffixes.items():
            number = value * by / times
            texts.append(f"{int(number) if number == int(number) else repr(number)}{suffix}")
        exact = [
            text
            for text in (*texts, repr(value) if self.plain else f"{value!r}{self.base}")
            if self.parse(text) == value
        ]
        return next((text for text in exact if len(text) <= _SHORT), None) or min(exact, key=len)


UNITS: dict[str, Unit] = {
    "s": Unit("a time", {"s": (1, 1), "ms": (1, 1000), "m": (60, 1), "h": (3600, 1)}, "s", "5s or 250ms"),
    "1/s": Unit("a rate", {"/s": (1, 1), "/m": (1, 60), "/h": (1, 3600)}, "/s", "1.5/s or 30/m"),
    "share": Unit("a share", {"%": (1, 100)}, "%", "10% or 0.1", plain=True),
    "bytes": Unit(
        "a size",
        {
            "GB": (10**9, 1),
            "MB": (10**6, 1),
            "KB": (10**3, 1),
            "GiB": (2**30, 1),
            "MiB": (2**20, 1),
            "KiB": (2**10, 1),
            "B": (1, 1),
        },
        "B",
        "4GB",
        whole=True,
        most=2.0**62,
    ),
}
