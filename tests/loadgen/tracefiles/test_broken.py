"""Broken traces: every line of them, by its number, and nothing is replayed."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.arrivals import Constant
from loadgen.tracefiles import TRACES, Trace, TraceError

Make = Callable[..., Trace]


def found(make: Make, name: str, text: str | bytes, **more: object) -> list[tuple[int, str]]:
    """(line, what) of a trace that must not load."""
    with pytest.raises(TraceError) as caught:
        make(name, text, **more)
    assert {Path(file).name for file, _, _ in caught.value.found} == {f"trace.{name}"}
    return [(line, what) for _, line, what in caught.value.found]


LATER_AGENT = (
    '{"t": 13, "type": "n", "model": "m", "in": 9, "out": 1, "blocks": []}, {"t": 12.5, "type": "subagent"'
)
"""A sub-agent that starts before the request before it; one whose duration is known ends then."""
LINES = [
    ("mooncake", 2, '"timestamp": 0', '"timestamp": -1', "timestamp: -1 is negative"),
    ("mooncake", 2, '"timestamp": 0', '"timestamp": NaN', "NaN is not a number"),
    ("mooncake", 2, '"timestamp": 0', '"timestamp": 1e400', "is more than"),
    ("mooncake", 2, '"timestamp": 0', '"timestamp": true', "True is not a number"),
    ("mooncake", 2, '"timestamp": 0', '"timestamp": "0"', "'0' is not a number"),
    ("mooncake", 2, '"timestamp": 0', '"timestamp": 0, "timestamp": 0', "'timestamp' stands twice"),
    ("mooncake", 2, '"timestamp": 0', '"stamp": 0', "unknown key 'stamp' (did you mean 'timestamp'?)"),
    ("mooncake", 2, '"timestamp": 0, ', "", "missing 'timestamp'"),
    ("mooncake", 1, "1100", "0", "a length is 1 to 100,000,000 tokens, not 0"),
    ("mooncake", 1, "1100", "-5", "not -5"),
    ("mooncake", 1, "1100", "1100.0", "1100.0 is not a whole number"),
    ("mooncake", 1, "1100", '"1100"', "'1100' is not a whole number"),
    ("mooncake", 1, "1100", "null", "None is not a whole number"),
    ("mooncake", 1, "1100", "9" * 400, "a length is"),
    ("mooncake", 1, "1100", "9" * 5000, "not JSON"),
    ("mooncake", 1, "[0, 1, 2]", "[0, 1]", "hash_ids: 2 block ids, but 1,100 tokens are 3 blocks of 512"),
    ("mooncake", 1, "[0, 1, 2]", "[0, 1, 2, 3]", "hash_ids: 4 block ids"),
    ("mooncake", 1, "[0, 1, 2]", "[0, 1, -2]", "-2 is not a block id"),
    ("mooncake", 1, "[0, 1, 2]", "[0, 1, 2.0]", "2.0 is not a block id"),
    ("mooncake", 1, "[0, 1, 2]", "3", "3 is not a list"),
    ("mooncake", 4, "}", "", "not JSON"),
    ("mooncake", 4, "}", "}}", "more after its end"),
    ("mooncake", 4, "{", "[{", "not JSON"),
    ("bailian", 2, '"parent_chat_id": 5', '"parent_chat_id": 6', "parent_chat_id: 6 comes no earlier"),
    ("bailian", 2, '"parent_chat_id": 5', '"parent_chat_id": -2', "-2 is no id; a root has -1"),
    ("bailian", 1, '"chat_id": 5', '"chat_id": 5.5', "chat_id: 5.5 is not a whole number"),
    ("bailian", 2, '"chat_id": 6', '"chat_id": 5', "chat_id: 5 stands in line 1 too"),
    ("bailian", 2, "4.25", "-4.25", "-4.25 is negative"),
    ("bailian", 2, "[1, 2, 3]", "[1, 2]", "2 block ids, but 40 tokens are 3 blocks of 16"),
    ("weka", 1, "[[1, 3], [9, 2]]", "[[1, 3], [9, 3]]", "requests[2]: blocks: 6 block ids, but 330 tokens"),
    ("weka", 1, "[[1, 3], [9, 2]]", "[[1, 3], [9, 0]]", "[9, 0] is not [first id, count]"),
    ("weka", 1, "[[50, 4]]", "[[50, 3]]", "requests[1].requests[1]: blocks: 3 block ids"),
    ("weka", 1, '"t": 21.0', '"t": 13.0', "requests[3]: t: earlier than the request before it"),
    (
        "weka",
        1,
        '{"t": 12.5, "type": "subagent", "agent_id": "s1", "duration_ms": 9000',
        LATER_AGENT,
        "requests[2]: t: earlier than the request before it",
    ),
    ("weka", 1, '"t": 21.0', '"t": -1', "requests[3]: t: -1 is negative"),
    ("weka", 1, '"think_time": 12.0', '"think_time": -1', "requests[2]: think_time: -1 is negative"),
    ("weka", 2, '"block_size": 64', '"block_size": 16', "blocks of 64 tokens are known, not of 16"),
    ("weka", 2, '"hash_id_scope": "local"', '"hash_id_scope": "x"', "'x' is none of local, global"),
    ("weka", 2, '"type": "s"', '"type": "x"', "requests[0]: type: 'x' is none of n, s, subagent"),
    ("weka", 2, '"id": "b"', '"id": "a"', "id: 'a' stands at trace.weka:1 too"),
    ("weka", 2, '"in": 140', '"in": 140, "hash_ids": [1, 2]', "either blocks or hash_ids"),
    ("weka", 2, '"in": 140', '"imn": 140', "unknown key 'imn' (did you mean 'in'?)"),
    ("azure", 3, "3180", "0", "ContextTokens: a length is 1 to 100,000,000 tokens, not 0"),
    ("azure", 3, "3180", "", "ContextTokens: '' is not a whole number"),
    ("azure", 3, "3180", "3180.5", "'3180.5' is not a whole number"),
    ("azure", 3, "3180", "３１８０", "is not a whole number"),  # digits, but of another script
    ("azure", 3, "3180", "nan", "'nan' is not a whole number"),
    ("azure", 3, "2023-11-16 18:17:04", "2023-11-31 18:17:04", "TIMESTAMP: "),
    ("azure", 3, "2023-11-16 18:17:04", "2023-11-16 25:17:04", "is no time of day"),
    ("azure", 3, "2023-11-16 18:17:04", "9999-11-16 18:17:04", "is not a time of our days"),
    ("azure", 3, "2023-11-16 18:17:04", "1900-11-16 18:17:04", "is not a time of our days"),
    ("azure", 3, "04.0319600", "04.0319600+99:99", "has no offset from UTC: -14:00 to +14:00"),
    ("azure", 3, "04.0319600", "04.0319600+01:60", "has no offset from UTC"),
    ("azure", 3, "04.0319600", "04.0319600-14:01", "has no offset from UTC"),
    ("azure", 3, "2023-11-16 18:17:04", "-3", "is not a time such as"),
    ("azure", 3, ",8", "", "2 fields under 3 columns"),
    ("azure", 3, ",8", ",8,9", "4 fields under 3 columns"),
    ("azure", 3, ",8", ',"8', "its quotes do not match"),
    (
        "azure",
        1,
        "ContextTokens",
        "ContextToken",
        "unknown column 'ContextToken' (did you mean 'ContextTokens'",
    ),
    ("azure", 1, "GeneratedTokens", "GeneratedTokens,Model", "unknown column 'Model'"),
    ("azure", 1, "GeneratedTokens", "GeneratedTokens,GeneratedTokens", "stands 2 times"),
    ("burstgpt", 2, "490", "491", "Total tokens: 491 is not 472 + 18"),
    ("burstgpt", 2, "100.0", "-100.0", "'-100.0' is negative"),
    ("burstgpt", 2, "100.0", "1e3", "'1e3' is not a number"),
    ("burstgpt", 3, "1087,230,1317", "0,230,230", "Request tokens: 0, but it was answered"),
    ("vidur", 3, "2171", "2170", "num_total_tokens: 2,170 is not 2,015 + 156"),
    ("vidur", 3, "156", "0", "num_decode_tokens: a length is 1"),
    ("mt_bench", 1, '"turns"', '"turn"', "unknown key 'turn' (did you mean 'turns'?)"),
    ("mt_bench", 1, "Write a poem.", " ", "a question without words"),
    ("mt_bench", 2, '["What is 2 + 2?"]', "[]", "[] is not a list of questions"),
    ("mt_bench", 2, "What is", "\\ud800", "half a surrogate pair at character 1"),
    ("sharegpt", 2, '"from": "gpt"', '"from": "cat"', "conversations[1]: from: 'cat' is none of human"),
    ("sharegpt", 7, "How tall", '"How tall', "not JSON"),
    ("swe_agent", 1, '"role": "user"', '"role": "boss"', "history[1]: role: 'boss' is none of system, user"),
    ("swe_agent", 14, '"content": "I look."', '"content": ', "not JSON"),
]


@pytest.mark.parametrize(("name", "line", "was", "is_", "says"), LINES)
def test_one_fault_is_found_in_its_line(
    trace: Make, texts: dict[str, str], name: str, line: int, was: str, is_: str, says: str
) -> None:
    """The line's number, what is wrong with it, and no other line. An element of an array of objects is
    named by the line where it begins."""
    rows = texts[name].splitlines(keepends=True)
    number = next(i for i in range(line - 1, len(rows)) if was in rows[i])
    rows[number] = rows[number].replace(was, is_, 1)
    seen = found(trace, name, "".join(rows))
    assert {at for at, _ in seen} == {line}
    assert any(says in what for _, what in seen), seen


def test_every_broken_line_is_reported_at_once(trace: Make, texts: dict[str, str]) -> None:
    """A file with many faults gives all of them, several of one line too."""
    rows = texts["mooncake"].splitlines()
    rows[0] = '{"timestamp": -1, "input_length": 0, "output_lenght": 5, "hash_ids": [0]}'
    rows[2] = "{"
    rows[4] = rows[4].replace("[0]", "[0, 1]")
    seen = found(trace, "mooncake", "\n".join(rows))
    assert [line for line, _ in seen] == [1, 1, 1, 1, 3, 5]


def test_a_file_of_another_kind_gives_some_errors_and_their_number(trace: Make) -> None:
    """After 200 errors the others are counted."""
    seen = found(trace, "mooncake", '{"x": 1}\n' * 100)
    assert len(seen) == 201
    assert seen[-1] == (41, "and 300 more errors from here on")


@pytest.mark.parametrize("name", sorted(set(TRACES) - {"run"}))
def test_an_empty_file_is_refused(trace: Make, name: str) -> None:
    """So that nobody takes a quiet run for a fast target."""
    seen = found(trace, name, b"")
    assert seen == [(1, "the file is empty")]


@pytest.mark.parametrize("name", ["azure", "burstgpt", "vidur"])
def test_a_header_alone_and_a_second_header_are_refused(
    trace: Make, texts: dict[str, str], name: str
) -> None:
    """A table without rows, and files that were joined with their headers."""
    head, *rest = texts[name].splitlines()
    assert found(trace, name, head) == [(1, "no rows after the header")]
    joined = "\n".join([head, *rest, head, *rest])
    assert found(trace, name, joined) == [(len(rest) + 2, "the header a second time: were files joined?")]


@pytest.mark.parametrize("name", ["mooncake", "azure", "weka", "bailian", "burstgpt", "vidur", "mt_bench"])
def test_an_empty_line_is_a_request_that_is_missing(trace: Make, texts: dict[str, str], name: str) -> None:
    """In the middle and at the end; one line end after the last line is none."""
    rows = texts[name].rstrip("\n").splitlines()
    for at in (1, len(rows)):
        broken = "\n".join([*rows[:at], "", *rows[at:]]) + "\n"
        assert [line for line, what in found(trace, name, broken) if "empty line" in what] == [at + 1]


@pytest.mark.parametrize("cut", [-1, -9, 20, 11])
def test_a_damaged_gzip_file_is_refused(trace: Make, texts: dict[str, str], cut: int) -> None:
    """A download that ended too early."""
    packed = gzip.compress(texts["mooncake"].encode())
    assert any("gzip" in what for _, what in found(trace, "mooncake", packed[:cut]))
    assert any("gzip" in what for _, what in found(trace, "mooncake", packed[:-12] + b"x" * 12))


@pytest.mark.parametrize("name", ["mooncake", "sharegpt", "swe_agent"])
def test_bytes_that_are_no_text_are_found(trace: Make, texts: dict[str, str], name: str) -> None:
    """Latin-1, and UTF-16 with a hint."""
    raw = texts[name].encode()
    seen = found(trace, name, raw[:60] + b"\xff" + raw[60:])
    assert any("not UTF-8" in what for _, what in seen)
    if name == "mooncake":
        seen = found(trace, name, texts[name].encode("utf-16"))
        assert seen[0] == (1, "not UTF-8 at byte 1 of the line; it looks like UTF-16: save it as UTF-8")


def test_a_huge_array_is_read_through_its_window(trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that cross the window's edge are read whole, and a fault far into the file has its line."""
    from loadgen.tracefiles import documents

    monkeypatch.setattr(documents, "_WINDOW", 50)
    talk = [{"from": "human", "value": "é" * 40}, {"from": "gpt", "value": "ok " * 30}]
    rows = [{"id": str(k), "conversations": talk} for k in range(50)]
    text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
    assert trace("sharegpt", text).facts(1.0)["rows"] == 50
    lines = text.splitlines()
    lines[30] = lines[30].replace('"from": "gpt"', '"from" "gpt"')
    assert [line for line, _ in found(trace, "sharegpt", "\n".join(lines))] == [31]
    for end in ("", "]]", ",]"):
        assert found(trace, "sharegpt", text.rstrip().removesuffix("]") + end)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"thin": 0.0}, "thin keeps a share above 0%"),
        ({"compress": 0.0}, "compress divides times"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"max_input": 0}, "max_input must be 1 to"),
        ({"over": "cut"}, "over: cut needs max_input or max_output"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"start_at": 99.0}, "nothing of the trace is left"),
        ({"file": "/nowhere/trace.jsonl"}, "/nowhere/trace.jsonl: no such file"),
        ({"file": "${HEADRACE_NO_SUCH}/x"}, "the environment variable HEADRACE_NO_SUCH is not set"),
    ],
)
def test_settings_that_make_no_sense_are_refused(trace: Make, settings: dict[str, object], says: str) -> None:
    """With the setting's name and what it takes."""
    with pytest.raises(ValueError, match=re.escape(says)):
        TRACES["mooncake"](**{"file": trace("mooncake").file} | settings)  # type: ignore[attr-defined]


def test_a_recorded_text_is_not_cut(trace: Make) -> None:
    """Half a text is another text."""
    with pytest.raises(ValueError, match="a recorded text cannot be cut"):
        trace("sharegpt", max_input=3, over="cut")


def test_a_conversation_without_answers_alone_is_refused(trace: Make) -> None:
    """A file in which nothing can be asked."""
    with pytest.raises(ValueError, match="no conversation in it has a question and its answer"):
        trace("sharegpt", '[{"conversations": [{"from": "human", "value": "Hi"}]}]')


def test_the_remedy_for_failed_requests_is_one(trace: Make) -> None:
    """`failed: send` sends those that have a prompt, and is not named where none has."""
    head = "Timestamp,Model,Request tokens,Response tokens\n"
    with pytest.raises(ValueError, match="every request of this trace failed; failed: send replays them too"):
        trace("burstgpt", head + "1,m,5,0\n2,m,0,0\n")
    for failed in ("skip", "send"):
        with pytest.raises(ValueError, match=r"failed and has no prompt: none can be sent$"):
            trace("burstgpt", head + "1,m,0,0\n2,m,0,0\n", failed=failed)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder where one file is meant, an empty folder where traces are, a device."""
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        TRACES["mooncake"](file=str(tmp_path))  # type: ignore[call-arg]
    with pytest.raises(TraceError, match=":0: no trace in this folder"):
        TRACES["weka"](file=str(tmp_path), arrival=Constant(1.0))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        TRACES["mooncake"](file="/dev/null")  # type: ignore[call-arg]


def test_a_fault_in_a_folder_names_its_file(tmp_path: Path, texts: dict[str, str]) -> None:
    """Each file has lines of its own; an id that two of them have is named with both."""
    first, second = texts["weka"].splitlines()
    (tmp_path / "1.json").write_text(first)
    (tmp_path / "2.json").write_text(json.dumps(json.loads(second), indent=1))
    (tmp_path / "3.json").write_text(second.replace('"in": 140', '"in": 0').replace('"b"', '"c"'))
    (tmp_path / "4.jsonl").write_text(first)
    with pytest.raises(TraceError) as caught:
        TRACES["weka"](file=str(tmp_path), arrival=Constant(1.0))  # type: ignore[call-arg]
    assert [(Path(file).name, line) for file, line, _ in caught.value.found] == [
        ("3.json", 1),
        ("4.jsonl", 1),
    ]
    assert caught.value.found[1][2] == "id: 'a' stands at 1.json:1 too"
