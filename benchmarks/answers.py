"""What it costs to understand an answer: from the stamped reads of a stream to its record.

    python benchmarks/answers.py [--tokens 50] [--repeat 7]

For each kind of stream: µs of CPU per token event, as the client does it and with every event parsed the
long way. The whole exchange is in it, its record too. Prints a table, then one JSON line. Run it on an idle
machine: the load average stands in the line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen import eventstream
from loadgen.eventstream import EventStream
from loadgen.log import log_of
from loadgen.raw import Raw
from loadgen.targets import TARGETS, Dialect
from loadgen.timeline import Timeline
from results.record import Outcome, Record

WORDS = (" the", " and", " for", "ing", " you", " caf\u00e9", " of", "tion")
HEAD = {"id": "chatcmpl-0123456789abcdef", "created": 1764000000, "model": "smollm2-135m"}
USAGE = {"prompt_tokens": 120, "completion_tokens": 50, "total_tokens": 170}


def event(payload: dict[str, Any], name: str = "") -> bytes:
    body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return f"{f'event: {name}' + chr(10) if name else ''}data: {body}\n\n".encode()


def chat(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **more}
    return event({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})


CHAT_END = [
    event({**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
    event({**HEAD, "choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
]


@dataclass(frozen=True)
class Kind:
    """A kind of stream: its dialect, its k-th token, its end; ``per_read`` tokens share a read."""

    name: str
    dialect: str
    token: Callable[[int, str], bytes]
    end: list[bytes]
    per_read: int = 1

    def raw(self, tokens: int) -> Raw:
        events = [self.token(k, WORDS[k % len(WORDS)]) for k in range(tokens)]
        step = self.per_read
        reads = [b"".join(events[k : k + step]) for k in range(0, tokens, step)] + self.end
        times = [1_000_000 * (k + 2) for k in range(len(reads))]
        joined = log_of(times, [0] * len(reads), reads)
        return Raw(conn=0, sent=0, headers_at=1_000_000, status=200, reads=joined, ending="complete")


def response(k: int, text: str) -> bytes:
    delta = {"type": "response.output_text.delta", "sequence_number": k, "item_id": "m1", "delta": text}
    return event(delta, delta["type"])


def block(k: int, text: str) -> bytes:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return event(delta, "content_block_delta")


DONE = {"status": "completed", "usage": {"input_tokens": 120, "output_tokens": 50}}
KINDS = (
    Kind("chat", "openai_chat", lambda k, text: chat(text), CHAT_END),
    Kind("chat, 10 events a read", "openai_chat", lambda k, text: chat(text), CHAT_END, per_read=10),
    Kind("chat with token ids", "openai_chat", lambda k, text: chat(text, token_ids=[k]), CHAT_END),
    Kind(
        "responses",
        "openai_responses",
        response,
        [event({"type": "response.completed", "response": DONE}, "response.completed")],
    ),
    Kind(
        "messages",
        "anthropic_messages",
        block,
        [
            event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 50},
                }
            ),
            event({"type": "message_stop"}, "message_stop"),
        ],
    ),
)


def understand(dialect: Dialect, raw: Raw) -> Record:
    timeline = Timeline(dialect)
    timeline.replay(raw, raw.users, 1_000_000)
    return timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN), 0).record


def measure(kind: Kind, tokens: int, repeat: int) -> float:
    """µs per token event: the best of ``repeat`` runs of about 10,000 events."""
    dialect, raw = TARGETS[kind.dialect](model="m"), kind.raw(tokens)  # type: ignore[call-arg]
    record = understand(dialect, raw)
    assert record.outcome is Outcome.COMPLETED
    assert record.n_out == 50
    streams, best = max(1, 10_000 // tokens), float("inf")
    for _ in range(repeat):
        began = time.process_time()
        for _ in range(streams):
            understand(dialect, raw)
        best = min(best, time.process_time() - began)
    return best / streams / tokens * 1e6


def the_long_way(kind: Kind, tokens: int, repeat: int) -> float:
    """The same without the shortcut of loadgen.template."""
    learn = EventStream._learn
    eventstream.EventStream._learn = lambda self, read, reading: None  # type: ignore[method-assign]
    try:
        return measure(kind, tokens, repeat)
    finally:
        eventstream.EventStream._learn = learn  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=50, help="of each stream")
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    found = {}
    print(f"{'µs of CPU per event':26} {'as it is':>9} {'long way':>9}")
    for kind in KINDS:
        short, long = measure(kind, args.tokens, args.repeat), the_long_way(kind, args.tokens, args.repeat)
        found[kind.name] = {"us": round(short, 2), "long_way_us": round(long, 2)}
        print(f"{kind.name:26} {short:9.2f} {long:9.2f}")
    load = [round(x, 2) for x in os.getloadavg()]
    print(json.dumps({"benchmark": "answers", "tokens": args.tokens, "load": load, "us_per_event": found}))


if __name__ == "__main__":
    main()
