"""What one write costs the reference server on this machine, measured on its own code before it serves."""

from __future__ import annotations

import socket
import time

from loadgen.clock import monotonic
from loadgen.reference.answers import Answers, End
from loadgen.reference.requests import Asked
from loadgen.reference.script import Script
from loadgen.reference.streams import Stream, kinds

_CONNECTIONS = 32
_TOKENS = 50
_ROUNDS = 6


def write_cost_us() -> float:
    """µs of CPU per write through loopback: taking it off the line, the stamp, the kernel, putting the next
    one on. Waking a reader that sleeps comes on top. The median of a few rounds."""
    answer = Answers(Script(ttft=0.0, itl=0.0)).answer(
        "/v1/chat/completions", Asked(_TOKENS, stream=True, include_usage=True), 10
    )
    stream, line = kinds()
    pairs = [_pair() for _ in range(_CONNECTIONS)]
    try:
        costs = []
        for _ in range(_ROUNDS):
            timeline = line(monotonic, 0, _ignore, _full)
            base = monotonic()
            for number, (ours, _) in enumerate(pairs):
                timeline.add(stream(number, base, answer, ours, None))
            began = time.process_time_ns()
            while len(timeline):
                timeline.run_due(1_000)
            costs.append((time.process_time_ns() - began) / timeline.writes / 1000)
            for _, theirs in pairs:
                theirs.recv(1 << 20)
        return sorted(costs)[len(costs) // 2]
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ours.setblocking(False)
    return ours, theirs


def _ignore(stream: Stream, end: End) -> None: ...
def _full(stream: Stream) -> None: ...
