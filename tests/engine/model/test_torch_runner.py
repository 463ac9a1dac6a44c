"""The torch runner: what it computes, what it touches, what it reports."""

from array import array
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine.model.decoder import Decoder  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from engine.request import Sampling  # noqa: E402
from engine.runner.base import Row, StepPlan  # noqa: E402
from engine.runner.torch_runner import TorchRunner  # noqa: E402

pytestmark = pytest.mark.torch
PROMPT = array("I", [257, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100])


@pytest.fixture
def runner(small_config):
    untied = replace(small_config, tied=False)  # a tied random model only repeats its input
    made = TorchRunner(Decoder(untied, random_tensors(untied, 0)), frozenset({258}))
    made.allocate(20, 4)
    return made


def row(tokens=PROMPT, start=0, table=(3, 1, 7), **changes):
    return replace(Row(1, start, tokens, table, True), **changes)


def step(runner, *rows):
    return runner.execute(StepPlan(0, rows))


def continuation(runner, rows_of_prompt, table, count=6):
    """Greedy tokens after the prompt was computed by these rows."""
    for part in rows_of_prompt:
        (token,) = step(runner, part).tokens
    drawn = []
    for index in range(count):
        drawn.append(token)
        at = len(PROMPT) + index
        (token,) = step(runner, row(array("I", [token]), at, table, draw=index + 1)).tokens
    return drawn


TABLE = (3, 1, 7, 12, 5)


def test_chunks_and_block_order_change_nothing(runner):
    """A prompt computed whole, in chunks that cut blocks, or in other blocks continues alike."""
    whole = continuation(runner, [row(table=TABLE)], TABLE)
    chunked = [
        row(PROMPT[:3], 0, TABLE, samples=False),
        row(PROMPT[3:9], 3, TABLE, samples=False),
        row(PROMPT[9:], 9, TABLE),
    ]
    assert continuation(runner, chunked, TABLE) == whole
    assert continuation(runner, [row(table=(20, 19, 2, 8, 9))], (20, 19, 2, 8, 9)) == whole
    assert len(set(whole)) > 2


def test_a_prefix_computed_by_another_row_of_the_same_step_is_read(runner):
    """K/V of the whole batch are written before any row attends (ENGINE E16)."""
    expected = step(runner, row()).tokens[0]
    runner.allocate(20, 4)
    first = row(PROMPT[:8], 0, (3, 1), samples=False)
    assert step(runner, row(PROMPT[8:], 8, (3, 1, 7)), first).tokens == (expected, None)


def test_a_step_touches_only_the_slots_it_names(runner):
    """All other K/V are as before, the null block's too."""
    with torch.inference_mode():
        runner._memory._tensor.fill_(7.0)
    step(runner, row(PROMPT[:6], 0, (3, 1), samples=False))
    untouched = (runner._memory._slots == 7.0).all(dim=-1).all(dim=-1).all(dim=0).all(dim=0)
    written = {3 * 4 + i for i in range(4)} | {1 * 4, 1 * 4 + 1}
    assert {slot for slot, same in enumerate(untouched.tolist()) if not same} == written


def test_rows_that_do_not_sample_draw_nothing(runner):
    """A prefill chunk in the middle has no token; an empty plan has no rows."""
    assert step(runner, row(samples=False)).tokens == (None,)
    assert step(runner).tokens == ()


def test_a_corrupted_row_is_reported_and_the_others_go_on(runner):
    """NaN in one sequence's K/V fails that row only, whether it samples or not."""
    good = step(runner, row()).tokens[0]
    step(runner, row(table=(4, 5, 6)))
    with torch.inference_mode():
        runner._memory._tensor[1, 0, 5] = float("nan")
    decode = row(array("I", [9]), 11, (4, 5, 6), draw=1)
    chunk = row(array("I", [9, 9]), 8, (4, 5, 6), samples=False)
    result = step(runner, decode, row(), chunk)
    assert result.failed == (0, 2)
    assert result.tokens == (None, good, None)


def test_sampling_is_per_row_and_seeded(runner):
    """Rows of one step draw by their own temperature and seed, as each does alone."""
    hot = [Sampling(temperature=2.0, seed=seed) for seed in range(6)]
    rows = [row(table=(1 + 3 * i, 2 + 3 * i, 3 + 3 * i), sampling=how) for i, how in enumerate(hot)]
    together = step(runner, *rows).tokens
    assert together == tuple(step(runner, one).tokens[0] for one in rows)
    assert len(set(together)) > 2


def test_the_pool_has_the_size_that_the_config_says(runner, small_config):
    """KV bytes are (N + 1) * B * bytes per token (ENGINE E10)."""
    assert runner.kv_bytes == 21 * 4 * small_config.kv_bytes_per_token(4)


def test_memory_that_cannot_be_had_is_a_memory_error(runner):
    """The error says how much was asked for."""
    with pytest.raises(MemoryError, match="KV blocks"):
        runner.allocate(1 << 42, 16)


def test_bf16_computes_and_keeps_bf16(small_config):
    """Half the KV memory, and nearly the same hidden states."""
    runners = {}
    for dtype in (torch.float32, torch.bfloat16):
        runners[dtype] = TorchRunner(
            Decoder(small_config, random_tensors(small_config, 0), dtype), frozenset()
        )
        runners[dtype].allocate(20, 4)
        assert not step(runners[dtype], row(), row(PROMPT[:1], 0, (9,))).failed
    assert runners[torch.bfloat16].kv_bytes * 2 == runners[torch.float32].kv_bytes
    keys = [runner._memory._slots[1, 0, 12:16].float() for runner in runners.values()]
    assert torch.allclose(*keys, atol=0.1, rtol=0.05)
