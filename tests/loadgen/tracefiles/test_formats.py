"""What each format is read as."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Part, Shot
from loadgen.recorded import estimated_tokens, text_of
from loadgen.tracefiles import TRACES, Trace

NS = 1_000_000_000
Make = Callable[..., Trace]
Play = Callable[..., tuple[Shot, ...]]


def test_every_format_is_in_the_table(texts: dict[str, str]) -> None:
    """A scenario's `type` is a key of the table; each has a sound file to test with."""
    assert set(TRACES) == {*texts, "run"}


def test_mooncake_ids_become_blocks_of_one_prompt(trace: Make, shots: Play) -> None:
    """Lengths, times and ids are the trace's; consecutive ids are one run; all rows share one text key."""
    made = shots(trace("mooncake", spread=0.0))
    assert [(s.due_ns, s.n_in_asked, s.n_out_asked) for s in made] == [
        (0, 1100, 5),
        (0, 1024, 6),
        (3 * NS, 600, 7),
        (3 * NS, 10, 1),
        (6_001_000_000, 512, 8),
    ]
    assert [s.prompt[0].blocks for s in made] == [
        ((0, 3),),
        ((0, 2),),
        ((0, 1), (9, 1)),
        ((4, 1),),
        ((0, 1),),
    ]
    assert {(s.prompt[0].text_key, s.prompt[0].block_tokens, len(s.prompt)) for s in made} == {
        (made[0].prompt[0].text_key, 512, 1)
    }
    assert len({s.session for s in made}) == 5


def test_other_files_share_no_text(trace: Make, shots: Play, texts: dict[str, str]) -> None:
    """Ids are valid in their file only; a file that was copied elsewhere is the same trace."""
    one = shots(trace("mooncake"))[0].prompt[0].text_key
    assert shots(trace("mooncake", texts["mooncake"]))[0].prompt[0].text_key == one
    other = texts["mooncake"].replace('"output_length": 8', '"output_length": 9')
    assert shots(trace("mooncake", other))[0].prompt[0].text_key != one


def test_azure_times_are_exact_and_begin_at_zero(trace: Make, shots: Play) -> None:
    """Seven fractional digits, with CRLF and no line end at the last row."""
    made = shots(trace("azure"))
    assert [(s.due_ns, s.n_in_asked, s.n_out_asked) for s in made] == [
        (0, 4808, 10),
        (52_000_000, 3180, 8),
        (2_000_000_100, 110, 27),
    ]
    assert len({s.prompt[0].text_key for s in made}) == 3


@pytest.mark.parametrize(
    ("written", "at"),
    [("2023-11-16T18:17:04Z", 1), ("2023-11-16 19:17:04+01:00", 1), ("2023-11-16 18:17:03", 0)],
)
def test_azure_clocks_with_offsets(trace: Make, shots: Play, written: str, at: int) -> None:
    """The sets of 2024 and 2025 write an offset from UTC, or images."""
    head = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
    text = f"{head}\n2023-11-16 18:17:03,0,5,5\n{written},2,6,6\n"
    made = trace("azure", text)
    assert sorted(s.due_ns or 0 for s in shots(made, span=2.0))[-1] // NS == at
    assert made.facts(2.0)["with_images"] == 1


def test_vidur_lengths_come_when_the_arrival_says(trace: Make, shots: Play) -> None:
    """One a second here, and from the beginning again when all were sent, with new texts."""
    made = shots(trace("vidur"), span=5.0)
    assert [(s.due_ns, s.n_in_asked, s.n_out_asked) for s in made] == [
        (0, 3772, 54),
        (NS, 2015, 156),
        (2 * NS, 64, 5),
        (3 * NS, 3772, 54),
        (4 * NS, 2015, 156),
    ]
    assert len({s.prompt[0].text_key for s in made}) == 5


def test_burstgpt_sessions_wait_for_the_end_before(trace: Make, shots: Play) -> None:
    """Request 2 came 10 s after request 1, which took 4 s; request 3 came before the end of request 2."""
    made = trace("burstgpt")
    sent = shots(made)
    assert [(s.due_ns, s.after_ns, s.n_in_asked, s.parent) for s in sent] == [
        (0, None, 472, None),
        (None, 6 * NS, 500, 0),
        (None, 0, 600, 1),
        (5 * NS, None, 1087, None),
    ]
    facts = made.facts(100.0)
    assert (facts["rows"], facts["failed"], facts["failed_without_prompt"], facts["overlapping"]) == (
        6,
        1,
        1,
        1,
    )


def test_burstgpt_sends_what_failed_if_asked(trace: Make, shots: Play) -> None:
    """A request that failed then asks for one token; without a prompt there is nothing to send."""
    sent = shots(trace("burstgpt", failed="send"))
    assert [(s.n_in_asked, s.n_out_asked) for s in sent][-1] == (80, 1)
    assert len(sent) == 5


def test_burstgpt_without_sessions(trace: Make, shots: Play) -> None:
    """The first releases have six columns, whole seconds and no sessions."""
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
        f"{t},ChatGPT,10,{n},{10 + n},Conversation log\n" for t, n in [(5, 3), (45, 4), (7, 5)]
    )
    made = trace("burstgpt", text)
    assert [(s.due_ns, s.n_out_asked) for s in shots(made)] == [(0, 3), (2 * NS, 5), (40 * NS, 4)]
    assert made.facts(100.0)["out_of_order"] == 1


def test_bailian_children_follow_their_parents(trace: Make, shots: Play) -> None:
    """Two children of one parent are branches; a parent that is not there makes a root, and is counted."""
    made = trace("bailian")
    sent = shots(made)
    assert [(s.session, s.branch, s.parent, s.due_ns, s.after_ns) for s in sent] == [
        (0, 0, None, 0, None),
        (0, 0, 0, None, 4_250_000_000),
        (0, 1, 0, None, 6 * NS),
        (0, 0, 1, None, 5_250_000_000),
        (1, 0, None, 7_500_000_000, None),
        (2, 0, None, 9 * NS, None),
    ]
    assert {s.prompt[0].block_tokens for s in sent} == {16}
    assert len({s.prompt[0].text_key for s in sent}) == 1
    assert made.facts(100.0)["parents_missing"] == 1


def test_weka_sub_agents_are_lineages_of_their_own(trace: Make, shots: Play) -> None:
    """The next request of a lineage comes at the previous end + think time; a sub-agent at its own start,
    which its end and its duration give; its parent is the request that called it."""
    sent = shots(trace("weka"), span=1.5)
    assert [(s.session, s.turn, s.parent, s.after_ns) for s in sent] == [
        (0, 0, None, None),
        (1, 0, 0, 1_500_000_000),
        (1, 1, 1, 2 * NS),
        (0, 1, 0, 12 * NS),
        (0, 2, 3, 6 * NS),
        (2, 0, None, None),
    ]


def test_weka_ids_are_those_of_one_trace(trace: Make, shots: Play) -> None:
    """Inside a trace equal ids are equal text, between traces never, nor from one round to the next."""
    sent = shots(trace("weka"), span=4.0)
    main = [s.prompt[0] for s in sent if s.session == 0]
    assert [part.blocks for part in main] == [((1, 3),), ((1, 3), (9, 2)), ((1, 5), (20, 1))]
    assert len({part.text_key for part in main}) == 1
    assert len({s.prompt[0].text_key for s in sent}) == 4  # two traces, played twice
    assert {part.block_tokens for s in sent for part in s.prompt} == {64}


def test_weka_takes_raw_ids_and_counts_what_it_cannot_play(trace: Make, texts: dict[str, str]) -> None:
    """`hash_ids` and `blocks` say the same; types and missing answers are in the facts."""
    rows = [json.loads(line) for line in texts["weka"].splitlines()]
    for request in rows[1]["requests"]:
        request["hash_ids"] = [i for first, n in request.pop("blocks") for i in range(first, first + n)]
    packed, raw = trace("weka"), trace("weka", "".join(json.dumps(row) + "\n" for row in rows))
    facts = packed.facts(10.0)
    assert facts | {"digest": "", "says": ""} == raw.facts(10.0) | {"digest": "", "says": ""}
    assert (facts["sessions"], facts["rows"], facts["subagents"]) == (2, 6, 1)
    assert (facts["streamed"], facts["not_streamed"], facts["without_output"]) == (1, 5, 1)


def test_weka_ids_may_be_those_of_all_traces(trace: Make, shots: Play, texts: dict[str, str]) -> None:
    """`hash_id_scope: global` is one namespace."""
    sent = shots(trace("weka", texts["weka"].replace('"local"', '"global"')), span=1.5)
    assert len({s.prompt[0].text_key for s in sent}) == 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_warm_prefix_is_what_sessions_share(trace: Make, shots: Play, share: float) -> None:
    """`tool_tokens + system_tokens` = 130 tokens are two whole blocks, shared by both sessions or by none."""
    sent = shots(trace("weka", warm_prefix=share), span=1.5)
    assert all(sum(part.tokens for part in s.prompt) == s.n_in_asked for s in sent)
    heads = [s.prompt[0] for s in sent if s.session in (0, 2)]
    warm = [part for part in heads if part.role == "system"]
    assert len(warm) == (4 if share else 0)
    assert {(part.blocks, part.tokens) for part in warm} <= {(((0, 2),), 128)}
    assert len({part.text_key for part in heads}) == (1 if share else 2)


def test_sharegpt_texts_stay_in_their_file(trace: Make, shots: Play) -> None:
    """Each answer is a request for as many tokens as it had; the plan has keys, which give the texts."""
    made = trace("sharegpt", think=2.0)
    sent = shots(made, span=1.5)
    assert [[text_of(part.text_key) for part in s.prompt] for s in sent] == [
        ["How tall is the Säntis?"],
        ["How tall is the Säntis?", "It is 2,501.9 metres tall.", "And the Eiger?"],
        ["Hi 😀"],
    ]
    assert sent[0].n_out_asked == estimated_tokens("It is 2,501.9 metres tall.")
    assert sent[1].after_ns == 2 * NS
    assert [part.role for part in sent[1].prompt] == ["user", "assistant", "user"]
    facts = made.facts(1.5)
    assert facts["conversations_without_answer"] == 1
    assert facts["lengths"].startswith("estimated")


def test_sharegpt_with_live_answers(trace: Make, shots: Play) -> None:
    """`history: live` sends what the target answered."""
    sent = shots(trace("sharegpt", history="live"), span=1.5)
    assert sent[1].prompt[1] == Part("assistant", sent[0].n_out_asked, answer_of=0)


@pytest.mark.parametrize("how", ["lines", "gzip", "bom"])
def test_sharegpt_in_other_wrappings(trace: Make, shots: Play, texts: dict[str, str], how: str) -> None:
    """An object a line, gzip and a byte order mark change nothing."""
    raw = texts["sharegpt"].encode()
    if how == "lines":
        raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in json.loads(raw)).encode()
    wrapped = gzip.compress(raw) if how == "gzip" else b"\xef\xbb\xbf" + raw if how == "bom" else raw
    sent = shots(trace("sharegpt", wrapped), span=1.5)
    assert [text_of(s.prompt[-1].text_key) for s in sent] == [
        "How tall is the Säntis?",
        "And the Eiger?",
        "Hi 😀",
    ]


def test_mt_bench_asks_with_live_answers(trace: Make, shots: Play) -> None:
    """The second question comes with the live answer to the first."""
    sent = shots(trace("mt_bench"), span=1.5)
    assert [len(s.prompt) for s in sent] == [1, 3, 1]
    assert sent[1].prompt[1] == Part("assistant", 9, answer_of=0)
    assert [text_of(s.prompt[-1].text_key) for s in sent] == [
        "Write a poem.",
        "Make it shorter.",
        "What is 2 + 2?",
    ]
    assert {s.n_out_asked for s in sent} == {9}


def test_swe_agent_sends_a_growing_prefix(trace: Make, shots: Play) -> None:
    """Request k sends all messages before the k-th answer; calls of tools and their results are marked."""
    sent = shots(trace("swe_agent"), span=0.5)
    assert [[part.role for part in s.prompt] for s in sent] == [
        ["system", "user"],
        ["system", "user", "assistant", "tool"],
    ]
    assert [part.call for part in sent[1].prompt] == [False, False, True, False]
    assert text_of(sent[1].prompt[2].text_key) == 'I look.\nopen {"file": "a.py"}'
    assert sent[1].prompt[:2] == sent[0].prompt


def test_a_folder_of_files_is_one_trace(tmp_path: Any, texts: dict[str, str], shots: Play) -> None:
    """In order of their names; a text's key names its own file."""
    for name in ("b.traj.json", "a.traj.json"):
        (tmp_path / name).write_text(texts["swe_agent"])
    (tmp_path / "README.md").write_text("not a trace")
    made = TRACES["swe_agent"](file=str(tmp_path), arrival=Constant(1.0))  # type: ignore[call-arg]
    keys = [s.prompt[0].text_key for s in shots(made, span=2.0)]
    assert ["a.traj" in key for key in keys] == [True, True, False, False]


@pytest.mark.parametrize("wrap", [lambda raw: b"\xef\xbb\xbf" + raw, gzip.compress])
@pytest.mark.parametrize("name", ["mooncake", "weka", "azure", "burstgpt", "bailian", "vidur", "mt_bench"])
def test_gzip_and_byte_order_marks_change_nothing(
    trace: Make, shots: Play, texts: dict[str, str], name: str, wrap: Callable[[bytes], bytes]
) -> None:
    """The same requests at the same times, whatever the file's wrapping; CRLF too."""

    def seen(made: Trace) -> list[tuple[Any, ...]]:
        return [(s.due_ns, s.after_ns, s.n_in_asked, s.n_out_asked) for s in shots(made, span=20.0)]

    plain = seen(trace(name, spread=0.0) if name in ("mooncake", "burstgpt") else trace(name))
    crlf = texts[name].replace("\r\n", "\n").replace("\n", "\r\n").encode()
    settings = {"spread": 0.0} if name in ("mooncake", "burstgpt") else {}
    assert seen(trace(name, wrap(crlf), **settings)) == plain
