"""What attribution may see, made after the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadgen.observe import Kept, Tokenized, keep, observe
from loadgen.observed_io import read_observed, write_observed
from loadgen.text import Message
from loadgen.timeline import Exchange
from results.attribution.observed import Observed, shared_prefix, token_hashes
from results.record import Outcome, Record

SALT = 12345


async def tokenize(messages: Sequence[Message], tenant: str) -> Tokenized:
    """A token a byte; one template token before each message."""
    tokens: list[int] = []
    components = []
    for index, message in enumerate(messages):
        content = list(message["content"].encode())
        components.append(
            {
                "path": f"messages[{index}]",
                "role": message["role"],
                "start": len(tokens) + 1,
                "tokens": len(content),
            }
        )
        tokens += [1, *content]
    return Tokenized(tokens, components)


def kept(id: int, *contents: str, text: str = "ok", parent: int | None = None) -> Kept:
    record = Record(id, "chat", "window", Outcome.COMPLETED, session=4, parent=parent, tenant="acme")
    record.request_id, record.start, record.terminal = f"r-{id}", id * 10**9, id * 10**9 + 5 * 10**8
    record.prompt_total, record.cache_read = 10, 0
    roles = ["system", "user", "assistant", "user"]
    messages = [{"role": role, "content": c} for role, c in zip(roles, contents, strict=False)]
    return Kept(record, messages, text, list(text.encode()))


def observed() -> list[Observed]:
    ordered = [kept(1, "be kind", "hello", "ok", "again", parent=0), kept(0, "be kind", "hello")]
    return asyncio.run(observe(ordered, tokenize, SALT, "http://x"))


def test_observed_requests_come_in_order_with_hashes_spans_and_parents() -> None:
    """One for each kept request; ids become salted hashes by position."""
    first, second = observed()
    assert (first.id, second.id, second.declared_parent) == ("r-0", "r-1", "r-0")
    assert (first.ts_start, first.ts_end, first.workspace, first.session) == (0.0, 0.5, "acme", "4")
    paths = [(c.path, c.kind, c.start, c.tok) for c in second.components]
    assert paths == [
        ("system[0]", "system", 1, 7),
        ("messages[0]", "message", 9, 5),
        ("messages[1]", "message", 15, 2),
        ("messages[2]", "message", 18, 5),
    ]
    assert first.hashes is not None
    assert second.hashes is not None
    assert shared_prefix(first.hashes, second.hashes) == len(first.hashes) == 14
    assert first.components[0].hash == second.components[0].hash != first.components[1].hash


def test_output_hashes_stand_at_the_positions_after_the_prompt() -> None:
    """So that an answer in a later prompt at the same place is recognised."""
    first = observed()[0]
    assert first.output_hashes is not None
    assert np.array_equal(first.output_hashes, token_hashes(list(b"ok"), SALT, 14))
    assert first.output is not None
    assert (first.output.start, first.output.tok, first.output.role) == (14, 2, "assistant")


def test_what_the_engine_never_took_is_not_observed() -> None:
    """A refused request left nothing in the cache; a cancelled one may have."""
    record = Record(0, "chat", "window", Outcome.HTTP_ERROR, http_status=429, sent=5)
    assert keep(Exchange(record), []) is None
    record = Record(0, "chat", "window", Outcome.CONNECT_ERROR)
    assert keep(Exchange(record), []) is None
    record = Record(0, "chat", "window", Outcome.CANCELLED_BY_PLAN, sent=5)
    assert keep(Exchange(record), []) is not None


def test_observed_requests_survive_their_file_without_any_text(tmp_path: Path) -> None:
    """Between processes go hashes and spans only."""
    path = tmp_path / "observed.arrow"
    write_observed(observed(), path)
    back = read_observed(path)
    for one, other in zip(observed(), back, strict=True):
        for name in ("id", "components", "output", "declared_parent", "ts_end", "params", "class_"):
            assert getattr(one, name) == getattr(other, name)
        assert np.array_equal(one.hashes, other.hashes)  # type: ignore[arg-type]
        assert np.array_equal(one.output_hashes, other.output_hashes)  # type: ignore[arg-type]
    assert b"be kind" not in path.read_bytes()
