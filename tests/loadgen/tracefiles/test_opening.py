"""Names that can be no file, and files of a folder that cannot be read: refusals, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Constant
from loadgen.tracefiles import TraceError
from loadgen.tracefiles.mooncake import Mooncake
from loadgen.tracefiles.opening import located
from loadgen.tracefiles.weka import Weka
from loadgen.vocabulary import vocabulary_of
from scenarios.traces import placed

LONG = "a" * 5000
ODD = st.one_of(
    st.sampled_from(["~nosuchuser/x", LONG, f"x/{LONG}", "a\0b", "~", "", ".", "\ud800", "${A"]),
    st.text(max_size=12).map(lambda text: f"/nowhere/{text}"),
    st.integers(250, 6000).map("é".__mul__),
)


@settings(deadline=None)
@given(ODD)
def test_any_name_is_located_or_refused(name: str) -> None:
    """As a trace and as a tokenizer: ValueError with the name, whatever the system makes of it."""
    raw = {"load": [{"trace": {"type": "mooncake", "file": name}}]}
    assert isinstance(placed(raw, Path("/tmp"))["load"][0]["trace"]["file"], str)
    for opens in (located, vocabulary_of):
        try:
            opens(name)
        except ValueError as error:
            said = str(error)
        else:
            said = name
        assert name[:200] in said or name in (".", "", "~")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("~nosuchuser/x", "~nosuchuser/x: no such user, and so no home directory: write the whole path"),
        (LONG, "aaa: cannot be read: File name too long"),
    ],
)
def test_the_reason_is_said(name: str, says: str) -> None:
    """A user who is not there, a name longer than the system's."""
    with pytest.raises(ValueError, match=r"^[a~]") as caught:
        Mooncake(file=name)
    assert says in str(caught.value)


def test_what_a_folder_cannot_give_is_found_with_the_rest(tmp_path: Path, texts: dict[str, str]) -> None:
    """A link to nowhere, a folder and a pipe that are named like traces: each by its name, and the broken
    lines of the other files with them."""
    first, second = texts["weka"].splitlines()
    (tmp_path / "a.json").write_text(first)
    (tmp_path / "b.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "c.json").write_text(second.replace('"in": 140', '"in": 0'))
    (tmp_path / "d.json").mkdir()
    os.mkfifo(tmp_path / "e.json")
    with pytest.raises(TraceError) as caught:
        Weka(file=str(tmp_path), arrival=Constant(1.0))
    said = [(Path(file).name, line, what.partition(":")[0]) for file, line, what in caught.value.found]
    assert said == [
        ("b.json", 0, "cannot be read"),
        ("c.json", 1, "requests[0]"),
        ("d.json", 0, "cannot be read"),
        ("e.json", 0, "cannot be read"),
    ]


def test_a_link_to_nowhere_beside_a_trace_harms_nothing(tmp_path: Path, texts: dict[str, str]) -> None:
    """Only what is named like a trace is read."""
    (tmp_path / "a.jsonl").write_text(texts["weka"])
    (tmp_path / "notes.txt").symlink_to(tmp_path / "nowhere")
    assert Weka(file=str(tmp_path), arrival=Constant(1.0)).facts(1.0)["sessions"] == 2
