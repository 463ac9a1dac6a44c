"""Paged attention against the definition: who sees whom, whatever the blocks, chunks and windows."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from engine.model.attention.reference import attend, span_of, window_mask  # noqa: E402
from engine.model.kv_memory import KvMemory  # noqa: E402

pytestmark = pytest.mark.torch
HEADS, KV_HEADS, SIZE = 4, 2, 8


def by_definition(q, k, v, start, window):
    """``q`` [n, H, D] at positions ``start ..`` over ``k``, ``v`` [L, Hkv, D], in double precision."""
    out = torch.empty_like(q)
    for i, row in enumerate(q):
        position = start + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(HEADS):
            kv_head = head * KV_HEADS // HEADS
            keys, values = (x[first : position + 1, kv_head].double() for x in (k, v))
            weights = torch.softmax(keys @ row[head].double() / SIZE**0.5, dim=0)
            out[i, head] = (weights @ values).float()
    return out


@settings(max_examples=60)
@given(
    block_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 1, 2, 5, 16, 40]),
    chunks=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_attention_is_that_of_the_definition(block_size, window, chunks, seed):
    """Several sequences in one batch, each at its own offset, over scattered blocks; every K/V that no row
    may see is NaN."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(start + count) // block_size) for start, count in chunks]
    memory = KvMemory(1, KV_HEADS, SIZE, sum(counts), block_size, torch.float32)
    memory._tensor.fill_(float("nan"))
    order = (torch.randperm(sum(counts), generator=generator) + 1).split(counts)
    spans, queries, expected, first = [], [], [], 0
    for (start, count), table in zip(chunks, order, strict=True):
        k, v = torch.randn(2, start + count, KV_HEADS, SIZE, generator=generator)
        seen = 0 if window is None else max(0, start + 1 - window)
        at = torch.arange(seen, start + count)
        memory.write(0, table[at // block_size] * block_size + at % block_size, k[seen:], v[seen:])
        q = torch.randn(count, HEADS, SIZE, generator=generator)
        spans.append(span_of(first, count, start, table, block_size, window))
        queries.append(q)
        expected.append(by_definition(q, k, v, start, window))
        first += count
    found = attend(torch.cat(queries), memory, 0, spans)
    assert (found - torch.cat(expected)).abs().max() < 1e-5


def test_only_blocks_that_a_row_sees_are_read():
    """What attention costs is bounded by the window, however long the sequence."""
    table = torch.arange(1, 101)
    late = span_of(0, 1, 1599, table, 16, 40)
    assert late.blocks.tolist() == [98, 99, 100]
    assert (late.skip, late.length) == (8, 40)
    assert span_of(0, 1, 1599, table, 16, None).length == 1600


@pytest.mark.parametrize(
    ("start", "count", "window", "drawing"),
    [
        (3, 2, None, ["1111.", "11111"]),
        (3, 3, 2, ["11..", ".11.", "..11"]),
        (0, 3, 2, ["1..", "11.", ".11"]),
        (1, 3, 8, ["11..", "111.", "1111"]),
    ],
)
def test_masks_as_drawn(start, count, window, drawing):
    """Row i sees the window up to its own position."""
    mask = window_mask(start, count, window)
    assert ["".join("1" if seen else "." for seen in row) for row in mask.tolist()] == drawing


@pytest.mark.parametrize(("start", "count", "window"), [(7, 1, None), (7, 1, 3), (0, 5, None), (0, 5, 5)])
def test_no_mask_where_none_is_needed(start, count, window):
    """A single row sees all that is gathered; a chunk at the start is causal."""
    assert window_mask(start, count, window) is None
