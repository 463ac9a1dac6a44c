"""Small invented traces of every format, and how to play one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Load, Phases, Plan, Shot
from loadgen.tracefiles import TRACES, Trace


def _json(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _weka(id: str, *requests: dict[str, Any]) -> dict[str, Any]:
    about = {"models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 90}
    return {"id": id, **about, "system_tokens": 40, "requests": list(requests), "totals": {}}


def _agent(t: float, given: int, blocks: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": given, "out": 7, "blocks": blocks, **more}


MOONCAKE = _json(
    [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 0, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]},
        {"timestamp": 3000, "input_length": 10, "output_length": 1, "hash_ids": [4]},
        {"timestamp": 6001, "input_length": 512, "output_length": 8, "hash_ids": [0]},
    ]
)
WEKA = _json(
    [
        _weka(
            "a",
            _agent(0.0, 200, [[1, 3]], api_time=2.0, think_time=0.0),
            {
                "t": 12.5,
                "type": "subagent",
                "agent_id": "s1",
                "duration_ms": 9000,
                "requests": [
                    _agent(0.0, 130, [[50, 2]], api_time=1.0, think_time=0.0),
                    _agent(3.0, 260, [[50, 4]], think_time=2.0),
                ],
            },
            _agent(14.0, 330, [[1, 3], [9, 2]], api_time=1.0, think_time=12.0),
            _agent(21.0, 400, [[1, 5], [20, 1]]),
        ),
        _weka("b", _agent(0.0, 140, [[1, 2]], type="s", out=0)),
    ]
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:05.9799601,110,27"
)
BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
100.0,s1,4,ChatGPT,472,18,490,Conversation log
105.0,,2,GPT-4,1087,230,1317,API log
110.0,s1,3,ChatGPT,500,40,540,Conversation log
111.0,s1,3,ChatGPT,600,50,650,Conversation log
112.0,,,GPT-4,80,0,80,API log
113.0,,,GPT-4,0,0,0,API log
"""


def _chat(id: int, parent: int, t: float, given: int, ids: list[int]) -> dict[str, Any]:
    turn = 1 if parent < 0 else 2
    lengths = {"input_length": given, "output_length": 3, "type": "text", "turn": turn}
    return {"chat_id": id, "parent_chat_id": parent, "timestamp": t, **lengths, "hash_ids": ids}


BAILIAN = _json(
    [
        _chat(5, -1, 0.0, 20, [1, 2]),
        _chat(6, 5, 4.25, 40, [1, 2, 3]),
        _chat(7, 5, 6.0, 33, [1, 2, 8]),
        _chat(8, -1, 7.5, 16, [1]),
        _chat(9, 99, 9.0, 16, [7]),
        _chat(10, 6, 9.5, 50, [1, 2, 3, 4]),
    ]
)
VIDUR = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
3772,54,3826,69.85
2015,156,2171,12.91
64,5,69,12.8
"""
SHAREGPT = json.dumps(
    [
        {
            "id": "x_0",
            "conversations": [
                {"from": "human", "value": "How tall is the Säntis?"},
                {"from": "gpt", "value": "It is 2,501.9 metres tall."},
                {"from": "human", "value": "And the Eiger?"},
                {"from": "gpt", "value": "3,967 metres."},
            ],
        },
        {"id": "x_1", "conversations": [{"from": "gpt", "value": "Hello."}]},
        {
            "id": "x_2",
            "conversations": [{"from": "human", "value": "Hi 😀"}, {"from": "gpt", "value": "Hi!"}],
        },
    ],
    ensure_ascii=False,
    indent=1,
)
MT_BENCH = _json(
    [
        {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Make it shorter."]},
        {"question_id": 82, "category": "math", "turns": ["What is 2 + 2?"], "reference": ["4"]},
    ]
)
SWE_AGENT = json.dumps(
    {
        "history": [
            {"role": "system", "content": "You fix things.", "agent": "main"},
            {"role": "user", "content": "It is broken."},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"function": {"name": "open", "arguments": '{"file": "a.py"}'}, "id": "c"}],
            },
            {"role": "tool", "content": "1: print(", "tool_call_ids": ["c"]},
            {"role": "assistant", "content": "A bracket is missing."},
        ]
    },
    indent=2,
)

TEXTS = {
    "mooncake": MOONCAKE,
    "weka": WEKA,
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "bailian": BAILIAN,
    "vidur": VIDUR,
    "sharegpt": SHAREGPT,
    "mt_bench": MT_BENCH,
    "swe_agent": SWE_AGENT,
}
NEEDED: dict[str, dict[str, Any]] = {
    name: {"arrival": Constant(1.0)} for name in ("weka", "vidur", "sharegpt", "swe_agent")
} | {"mt_bench": {"arrival": Constant(1.0), "output": 9}}
"""What a trace cannot do without, beside its file."""

Make = Callable[..., Trace]


@pytest.fixture
def texts() -> dict[str, str]:
    """A sound small file of each format."""
    return dict(TEXTS)


@pytest.fixture
def trace(tmp_path: Path) -> Make:
    """Makes the trace of a format from a text, by default its sound one."""

    def make(name: str, text: str | bytes | None = None, **settings: Any) -> Trace:
        path = tmp_path / f"trace.{name}"
        raw = TEXTS[name] if text is None else text
        path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
        return TRACES[name](file=str(path), **NEEDED.get(name, {}) | settings)  # type: ignore[call-arg]

    return make


@pytest.fixture
def shots() -> Callable[..., tuple[Shot, ...]]:
    """What a trace sends in so many seconds."""

    def play(trace: Trace, span: float = 100.0, seed: int = 3) -> tuple[Shot, ...]:
        return Plan.make([Load("c", trace, trace)], Phases(window=span), seed).shots

    return play


@pytest.fixture
def data() -> Path:
    """The folder of real traces."""
    folder = os.environ.get("HEADRACE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("HEADRACE_DATA does not name the folder of real traces")
    return Path(folder)
