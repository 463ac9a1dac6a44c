"""LoRA on the model: what an adapter adds, to whose rows, and what becomes of one that cannot be loaded."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine.model.decoder import Decoder  # noqa: E402
from engine.model.decoder_config import TINY, ModelError  # noqa: E402
from engine.model.lora import Lora, load  # noqa: E402
from engine.model.peft_folder import PRODUCTS, TARGETS, WEIGHTS, PeftAdapter, read_adapter  # noqa: E402
from engine.model.weights import expected_shapes, random_tensors  # noqa: E402
from engine.request import Sampling  # noqa: E402
from engine.runner.base import AdapterChange, Row, StepPlan  # noqa: E402
from engine.runner.torch_runner import TorchRunner  # noqa: E402
from tests.engine import lora_folders  # noqa: E402

pytestmark = pytest.mark.torch
QWEN = replace(TINY, qkv_bias=True, qk_norm=True)
PROMPT = array("I", [257, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100])


def read(folder, config=TINY) -> PeftAdapter:
    return read_adapter(folder, expected_shapes(config), 64)


def merged(adapter: PeftAdapter, tensors):
    """The model's own weights with ``W + scaling * B A`` in place of W."""
    out = dict(tensors)
    for module in adapter.modules:
        name = f"model.layers.{module.layer}.{TARGETS[module.target]}.{module.target}.weight"
        a, b = (torch.frombuffer(t.data, dtype=torch.float32).view(t.shape) for t in (module.a, module.b))
        out[name] = tensors[name] + module.scaling * (b @ a)
    return out


def runner_of(tensors, config=TINY, dtype=torch.float32):
    runner = TorchRunner(Decoder(config, dict(tensors), dtype), frozenset())
    runner.allocate(40, 4)
    return runner


def row(id=1, tokens=PROMPT, start=0, table=None, adapter=None, **changes):
    table = tuple(range(10 * id - 9, 10 * id)) if table is None else table
    return Row(id, start, tokens, table, True, Sampling(), adapter=adapter, **changes)


def step(runner, *rows, adapters=()):
    return runner.execute(StepPlan(0, rows, adapters=tuple(adapters)))


def change(folder, config=TINY):
    return AdapterChange(read(folder, config).digest, str(folder))


def continuation(runner, id=1, adapter=None, count=8):
    """Greedy tokens after the prompt, which is computed in two chunks."""
    step(runner, replace(row(id, PROMPT[:7], adapter=adapter), samples=False))
    (token,) = step(runner, row(id, PROMPT[7:], 7, adapter=adapter)).tokens
    drawn = [token]
    for index in range(count - 1):
        known = row(id, array("I", [token]), len(PROMPT) + index, adapter=adapter, draw=index + 1)
        (token,) = step(runner, known).tokens
        drawn.append(token)
    return drawn


def logits(runner, tokens, adapter=None):
    """Of the last position."""
    kept = []
    original = runner._model.logits
    runner._model.logits = lambda hidden: kept.append(original(hidden)) or kept[-1]
    try:
        step(runner, row(1, tokens, adapter=adapter))
    finally:
        del runner._model.logits
    return kept[0][0]


@pytest.mark.parametrize("config", [TINY, QWEN], ids=["llama", "qwen"])
@pytest.mark.parametrize(
    "targets", [*((target,) for target in TARGETS), ("k_proj", "up_proj"), tuple(TARGETS)]
)
def test_an_adapter_adds_its_product_to_the_right_slices(tmp_path, config, targets):
    """Each target alone, and several of one fused product, are as weights with B A merged in."""
    tensors = random_tensors(config, 0)
    folder = lora_folders.adapter(tmp_path, 3, config, targets, rank=4, alpha=6)
    plain, reference = runner_of(tensors, config), runner_of(merged(read(folder, config), tensors), config)
    adapted = change(folder, config)
    step(plain, adapters=[adapted])
    with torch.inference_mode():
        ours, theirs = logits(plain, PROMPT, adapted.digest), logits(reference, PROMPT)
        assert torch.allclose(ours, theirs, atol=1e-4), (ours - theirs).abs().max()
        assert (ours - logits(plain, PROMPT)).abs().max() > 0.01, "the adapter changes nothing"


def test_every_target_belongs_to_one_product():
    """The model's products are made of all projections that a folder may adapt."""
    assert sorted(target for targets in PRODUCTS.values() for target in targets) == sorted(TARGETS)


def test_patterns_reach_the_weights(tmp_path):
    """Ranks and scalings of their own for some modules, by root of the rank."""
    tensors = random_tensors(TINY, 0)
    modules = lora_folders.modules_of(TINY)
    wanted = lora_folders.settings_of(
        rank=4,
        alpha=3,
        use_rslora=True,
        rank_pattern={"k_proj": 7, "up_proj": 2},
        alpha_pattern={"down_proj": 1},
    )
    halves = lora_folders.tensors_of(modules, 4, ranks={"k_proj": 7, "up_proj": 2})
    folder = lora_folders.write(tmp_path, wanted, halves)
    plain, adapted = runner_of(tensors), change(folder)
    step(plain, adapters=[adapted])
    with torch.inference_mode():
        theirs = logits(runner_of(merged(read(folder), tensors)), PROMPT)
        assert torch.allclose(logits(plain, PROMPT, adapted.digest), theirs, atol=1e-4)


def test_each_text_of_a_mixed_batch_is_as_alone(tmp_path):
    """Base and two adapters, prefill and decode, side by side in one step and in any order."""
    tensors = random_tensors(TINY, 0)
    adapters = [change(lora_folders.adapter(tmp_path / name, seed)) for seed, name in enumerate("ab")]
    names = [None, adapters[0].digest, adapters[1].digest]
    alone = []
    for name in names:
        runner = runner_of(tensors)
        step(runner, adapters=adapters)
        alone.append(continuation(runner, 1, name, 4))
    assert len({tuple(text) for text in alone}) == 3
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 1, 2)):
        runner = runner_of(tensors)
        rows = [row(place + 1 if place < 3 else 4, adapter=names[who]) for place, who in enumerate(order)]
        tokens = list(step(runner, *rows, adapters=adapters).tokens)
        assert tokens == [alone[who][0] for who in order]
        for index in range(1, 4):
            known = [
                replace(
                    rows[place],
                    start=len(PROMPT) + index - 1,
                    tokens=array("I", [tokens[place]]),
                    draw=index,
                )
                for place in range(len(order))
            ]
            tokens = list(step(runner, *known).tokens)
            assert tokens == [alone[who][index] for who in order]


def test_who_has_no_adapter_fails_and_nobody_else(tmp_path):
    """An adapter that cannot be loaded, or was dropped, fails its rows with the reason; base rows go on."""
    runner = runner_of(random_tensors(TINY, 0))
    (base,) = step(runner, row()).tokens
    good, gone = (
        change(lora_folders.adapter(tmp_path / "good")),
        AdapterChange("0" * 32, str(tmp_path / "gone")),
    )
    result = step(
        runner, row(1, adapter=gone.digest), row(2), row(3, adapter=good.digest), adapters=[gone, good]
    )
    assert result.failed == (0,)
    assert result.tokens[0] is None
    assert result.tokens[1] == base
    assert result.tokens[2] is not None
    assert "no such folder" in result.errors[0]
    assert result.unloaded.keys() == {gone.digest}
    result = step(runner, row(3, adapter=good.digest), row(2), adapters=[AdapterChange(good.digest)])
    assert (result.failed, result.tokens[1], result.unloaded) == ((0,), base, {})
    assert "not resident" in result.errors[0]
    result = step(runner, row(3, adapter=good.digest))
    assert result.failed == (0,)
    assert result.tokens == (None,)


def test_changed_content_is_not_loaded(tmp_path):
    """A folder that holds something else by now is refused: its digest is what was registered."""
    before = change(lora_folders.adapter(tmp_path, 0))
    lora_folders.adapter(tmp_path, 1)
    with pytest.raises(ModelError, match="content has changed since it was registered"):
        load(before.folder, before.digest, TINY, torch.float32)
    (tmp_path / WEIGHTS).write_bytes(b"torn")
    runner = runner_of(random_tensors(TINY, 0))
    assert "not a safetensors file" in step(runner, adapters=[before]).unloaded[before.digest]


def test_bf16_is_close_to_fp32(tmp_path):
    """In the model's precision an adapter is itself, rounded."""
    tensors = random_tensors(TINY, 0)
    adapted = change(lora_folders.adapter(tmp_path, scale=0.5))
    found = []
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            runner = runner_of(tensors, dtype=dtype)
            step(runner, adapters=[adapted])
            found.append(logits(runner, PROMPT, adapted.digest))
    assert (found[0] - found[1]).abs().max() < 0.15 * found[0].abs().max()


def test_size_in_memory(tmp_path):
    """What a resident adapter takes: A as it is, B with room for the projections of its product."""
    found = read(lora_folders.adapter(tmp_path, targets=("k_proj", "o_proj"), rank=4))
    adapter = Lora(found, TINY, torch.float32)
    per_layer = 4 * 64 + (64 + 2 * 32) * 4 + 4 * 64 + 64 * 4
    assert sum(delta.a.numel() + delta.b.numel() for delta in adapter._deltas.values()) == 2 * per_layer
    assert found.weights(expected_shapes(TINY)) == 2 * per_layer
