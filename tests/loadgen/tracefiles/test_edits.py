"""Any edit of a sound trace: it loads, or is refused by the line that was edited."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from loadgen.tracefiles import Trace, TraceError

Make = Callable[..., Trace]
LINE_FORMATS = ["mooncake", "azure", "burstgpt", "vidur", "bailian", "weka", "mt_bench"]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(LINE_FORMATS),
    st.integers(0, 9),
    st.integers(0, 400),
    st.integers(0, 6),
    st.text(alphabet=st.sampled_from('0123456789-.,:"{}[]abNeE \t\\\x00é'), max_size=4),
)
def test_a_corrupted_line_is_refused_by_its_number_or_harms_no_other(
    trace: Make, texts: dict[str, str], name: str, row: int, at: int, gone: int, typed: str
) -> None:
    """Any edit of one line: its number and no other is in the error, or the file still has as many sound
    requests as it had lines."""
    rows = texts[name].replace("\r\n", "\n").rstrip("\n").split("\n")
    row %= len(rows)
    at %= len(rows[row]) + 1
    rows[row] = rows[row][:at] + typed + rows[row][at + gone :]
    assume(name != "weka" or not rows[0].strip().startswith("["))  # an array, whose next line lacks its comma
    made, blamed = _loaded(trace, name, "\n".join(rows) + "\n", row)
    assert blamed <= {row + 1}
    if made is not None:
        before, after = trace(name).facts(1.0), made.facts(1.0)
        assert after["rows"] == before["rows"] or name in ("weka", "mt_bench")
        assert after["sessions"] == before["sessions"] or name in ("bailian", "burstgpt")


def _loaded(make: Make, name: str, text: str, row: int) -> tuple[Trace | None, set[int]]:
    """The trace, or the lines that are named for its being refused."""
    try:
        return make(name, text), set()
    except TraceError as error:
        return None, _blamed(error, name, row)


def _blamed(error: TraceError, name: str, row: int) -> set[int]:
    """The lines that the error names. An id or a time that still is one can make another line wrong, which
    then names the edited one, or comes no later than it."""
    lines = set()
    for _, line, what in error.found:
        other = name in ("bailian", "weka") and (f"line {row + 1}" in what or f":{row + 1} too" in what)
        lines.add(row + 1 if other else line)
    return lines


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["sharegpt", "swe_agent", "weka", "mt_bench"]),
    st.integers(0, 3000),
    st.integers(0, 40),
    st.text(alphabet=st.sampled_from('01-.,:"{}[]ae \n\t\\\x00é\ud800'), max_size=6),
)
def test_any_edit_of_a_document_loads_or_is_refused(
    trace: Make, texts: dict[str, str], name: str, at: int, gone: int, typed: str
) -> None:
    """A few characters replaced anywhere, also by what is no text: a trace or an error with file and line."""
    text = texts[name]
    at %= len(text)
    edited = (text[:at] + typed + text[at + gone :]).encode("utf-8", "surrogatepass")
    try:
        trace(name, edited)
    except TraceError as error:
        found_lines = [line for _, line, _ in error.found]
    except ValueError as error:
        found_lines = [1] if str(error) else []
    else:
        found_lines = [1]
    assert found_lines
    assert all(1 <= line <= text.count("\n") + 8 for line in found_lines)
