"""Quantities with units."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.units import UNITS

NUMBERS = st.floats(min_value=0, max_value=1e9, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("s", "5s", 5.0),
        ("s", "250ms", 0.25),
        ("s", "2m", 120.0),
        ("s", "1h", 3600.0),
        ("s", " 1.5 s ", 1.5),
        ("s", "2e-6s", 2e-6),
        ("1/s", "1.5/s", 1.5),
        ("1/s", "30/m", 0.5),
        ("share", "10%", 0.1),
        ("share", 0.1, 0.1),
        ("share", 1, 1.0),
        ("bytes", "4GB", 4_000_000_000),
        ("bytes", "1KiB", 1024),
    ],
)
def test_reads_what_a_person_writes(unit: str, text: object, value: float) -> None:
    """Every documented notation gives the value in the base unit."""
    assert UNITS[unit].parse(text) == value


@pytest.mark.parametrize(
    ("unit", "text", "says"),
    [
        ("s", 5, "missing unit (write 5s"),
        ("s", "5", "missing unit (write 5s"),
        ("s", 0, "missing unit (write 0s"),
        ("1/s", 3, "missing unit (write 3/s"),
        ("bytes", 4096, "missing unit (write 4096B"),
        ("s", "5 parsecs", "is not a time (write 5s or 250ms; units s ms m h)"),
        ("s", "-5s", "is not a time"),
        ("s", "٣s", "is not a time"),
        ("1/s", "3s", "is not a rate"),
        ("share", 10, "lies between 0% and 100%"),
        ("share", "110%", "lies between 0% and 100%"),
        ("s", True, "expected a time"),
        ("s", ["5s"], "expected a time"),
    ],
)
def test_refuses_with_the_way_to_write_it(unit: str, text: object, says: str) -> None:
    """A quantity without its unit, or with another's, is refused with an example."""
    with pytest.raises(ValueError, match=re.escape(says)):
        UNITS[unit].parse(text)


@given(NUMBERS, st.sampled_from(["s", "1/s"]))
def test_written_values_read_back_exactly(value: float, unit: str) -> None:
    """Writing and reading any float gives the very same float."""
    assert UNITS[unit].parse(UNITS[unit].write(value)) == value


@given(st.floats(min_value=0, max_value=1, allow_nan=False))
def test_shares_read_back_exactly(value: float) -> None:
    """Shares survive writing, as a percentage or as a plain number."""
    assert UNITS["share"].parse(UNITS["share"].write(value)) == value


@given(st.integers(min_value=0, max_value=2**50))
def test_sizes_read_back_exactly(value: int) -> None:
    """Sizes are whole bytes before and after."""
    assert UNITS["bytes"].parse(UNITS["bytes"].write(value)) == value


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 5.0, "5s"),
        ("s", 0.0012, "1.2ms"),
        ("share", 0.1, "10%"),
        ("bytes", 4 * 10**9, "4GB"),
        ("1/s", 1.5, "1.5/s"),
    ],
)
def test_writes_what_a_person_would(unit: str, value: float, text: str) -> None:
    """The written form is the short, usual one."""
    assert UNITS[unit].write(value) == text
