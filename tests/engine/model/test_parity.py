"""Greedy output equals transformers', however the scheduler cuts, batches and caches, for every family."""

from array import array
from functools import cached_property

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from engine.config import (  # noqa: E402
    POLICIES,
    AdmissionConfig,
    CacheConfig,
    DiskConfig,
    EngineConfig,
    TiersConfig,
)
from engine.kv.disk import DiskStore  # noqa: E402
from engine.model import load_runner, load_tokenizer  # noqa: E402
from engine.model.byte_tokenizer import ByteTokenizer  # noqa: E402
from engine.model.config_json import read_config  # noqa: E402
from engine.model.decoder import Decoder  # noqa: E402
from engine.model.pull import is_pulled, model_folder  # noqa: E402
from engine.model.weights import load_tensors  # noqa: E402
from engine.runner.base import Row, StepPlan  # noqa: E402
from engine.runner.torch_runner import TorchRunner, pack  # noqa: E402
from tests.engine.model import parity  # noqa: E402
from tests.engine.model.families import FAMILIES, save  # noqa: E402
from tests.engine.model.parity import BLOCK, TEXT, Case, all_but_the_last_token, hits  # noqa: E402

pytestmark = pytest.mark.torch

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 129, 200, 257, 300)
GENERATED = 8
TIGHT = 26
"""Blocks of a pool that holds the longest prompt and not much more."""
ROOMY = 100_000_000
FAST = {"host_bandwidth": 10**18, "host_latency": 1e-15}
"""So that restoring is always cheaper than computing."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Loaded:
    """One family in one precision: transformers' model and ours."""

    def __init__(self, folder, dtype):
        self.dtype = dtype
        self.theirs = parity.reference_model(folder, dtype)
        self.exact = parity.reference_model(folder, torch.float32)
        config = read_config(folder)
        self.ours = Decoder(config, load_tensors(folder, config)[0], dtype)
        self.prompts = parity.prompts_of(ByteTokenizer().encode(TEXT.read_text()), LENGTHS)

    @cached_property
    def errors(self) -> torch.Tensor:
        """Of transformers' own logits in this precision, against fp32 with the same weights: [L, vocabulary]
        over the longest prompt."""
        return self.logits(self.theirs) - self.logits(self.exact)

    def logits(self, model) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([self.prompts[len(LENGTHS) - 1]])).logits[0].float()

    @property
    def close(self) -> float:
        """The gap below which two logits may trade places. In bf16 four rounding errors decide: those of
        both logits in both implementations. Taken as independent they add up to twice a single one; the
        largest of 77,700 measured errors stands for it (0.035 to 0.05, so gaps below 0.1 of logits that
        spread by 1)."""
        return parity.CLOSE if self.dtype == torch.float32 else 2 * float(self.errors.abs().max())


ROUNDED = ("llama3", "qwen2", "qwen3", "mistral")
"""Families that are tried in bf16 too."""
PARAMS = [*(f"{family}-fp32" for family in FAMILIES), *(f"{family}-bf16" for family in ROUNDED)]


@pytest.fixture(scope="module", params=PARAMS)
def loaded(request, tmp_path_factory):
    family, _, dtype = request.param.rpartition("-")
    folder = tmp_path_factory.mktemp(family)
    save(family, folder, DTYPES[dtype])
    return Loaded(folder, DTYPES[dtype])


@pytest.fixture(scope="module")
def case(loaded, tmp_path_factory):
    references = {id: parity.greedy(loaded.theirs, p, GENERATED) for id, p in loaded.prompts.items()}
    disk = DiskStore(tmp_path_factory.mktemp("disk") / "tier", "parity", lambda: 0.0)
    runner = TorchRunner(loaded.ours, frozenset({258}), disk=disk)
    yield Case(runner, loaded.prompts, references, GENERATED, loaded.close)
    disk.close()


def test_logits_of_every_position(loaded):
    """One pass over a prompt, in one chunk and in several: in fp32 the logits of every position are
    transformers'; in bf16 they are as near to those in fp32 as transformers' own are."""
    prompt = array("I", loaded.prompts[len(LENGTHS) - 1])
    table = tuple(range(1, len(prompt) // BLOCK + 2))
    exact = loaded.logits(loaded.exact)
    with torch.inference_mode():
        for chunk in (len(prompt), 16, 100):
            memory = loaded.ours.new_memory(len(table), BLOCK)
            found = []
            for start in range(0, len(prompt), chunk):
                row = Row(1, start, prompt[start : start + chunk], table, False)
                batch = pack((row,), BLOCK, loaded.ours.windows)
                found.append(loaded.ours.logits(loaded.ours.forward(batch, memory)))
            errors = torch.cat(found) - exact
            if loaded.dtype == torch.float32:
                assert errors.abs().max() < 2e-5
            else:
                assert errors.pow(2).mean() < 1.2 * loaded.errors.pow(2).mean()


def test_alone_cold_and_from_hits(case):
    """One prompt at a time: first computed, then read from cache up to the last-token rule."""
    worker = case.worker(chunk=512)
    for id in case.prompts:
        assert hits(case.generate(worker, [id])) == {id: 0}
    for id, prompt in case.prompts.items():
        assert hits(case.generate(worker, [id])) == all_but_the_last_token({id: prompt})


@pytest.mark.parametrize("chunk", [16, 512])
def test_together_in_chunks_cold_and_from_hits(case, chunk):
    """All prompts at once, in chunks beside decodes; then again from cache."""
    worker = case.worker(chunk=chunk)
    assert not any(hits(case.generate(worker, case.prompts)).values())
    assert hits(case.generate(worker, case.prompts)) == all_but_the_last_token(case.prompts)


def test_preempted_and_resumed(case):
    """In a pool too small for all, whoever lost its blocks goes on as if nothing had been."""
    worker = case.worker(chunk=64, blocks=TIGHT, admission=AdmissionConfig(policy="prompt"))
    done = case.generate(worker, case.prompts)
    assert sum(message.truth.preemptions for message in done.values()) > 0
    assert sum(message.truth.recomputed for message in done.values()) > 0


def test_swapped_out_and_in(case):
    """The K/V of a victim goes to host memory and comes back; nothing is computed twice."""
    cache = CacheConfig(tiers=TiersConfig(swap=ROOMY, **FAST))
    admission = AdmissionConfig(policy="prompt")
    worker = case.worker(chunk=64, blocks=TIGHT, admission=admission, preemption="swap", cache=cache)
    done = case.generate(worker, case.prompts)
    assert sum(message.truth.preemptions for message in done.values()) > 0
    assert sum(message.truth.recomputed for message in done.values()) == 0


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_restored_from_a_slower_tier(case, tier):
    """What a tight pool evicts is read back: from host memory, or from disk where that holds little."""
    few = 8 * case.runner.kv_bytes_per_token * BLOCK
    disk = DiskConfig(path="given to the runner", size=ROOMY, bandwidth=10**18, latency=1e-15)
    tiers = {"host": TiersConfig(host=ROOMY, **FAST), "disk": TiersConfig(host=few, disk=disk, **FAST)}
    worker = case.worker(chunk=64, blocks=TIGHT, cache=CacheConfig(tiers=tiers[tier]))
    for id in case.prompts:
        case.generate(worker, [id])
    restored = 0
    for id in case.prompts:
        (truth,) = (message.truth for message in case.generate(worker, [id]).values())
        restored += getattr(truth, f"hit_{tier}")
    assert restored > 100


def test_choices_share_their_prompt_and_part_ways(case):
    """Three greedy choices of one prefill say the same: full blocks are shared, the last one is copied."""
    worker = case.worker(chunk=64)
    done = case.generate(worker, case.prompts, n=3)
    assert sum(message.truth.computed for message in done.values()) == sum(map(len, case.prompts.values()))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_choices_preempted_and_resumed(case, preemption):
    """The same in a pool too small for all of them."""
    cache = CacheConfig(tiers=TiersConfig(swap=ROOMY, **FAST))
    admission = AdmissionConfig(policy="prompt")
    worker = case.worker(64, TIGHT, admission=admission, preemption=preemption, cache=cache)
    done = case.generate(worker, case.prompts, n=2)
    assert sum(message.truth.preemptions for message in done.values()) > 0


@settings(max_examples=4)
@given(st.data())
def test_any_mixture(case, data):
    """Whatever policies, pool, tiers, chunks and choices: two waves of prompts, the second of them partly
    from what is left of the first."""
    chunk = data.draw(st.sampled_from([16, 40, 512]), "chunk")
    blocks = data.draw(st.integers(TIGHT, 60), "blocks")
    tiers = data.draw(st.sampled_from([{}, {"host": ROOMY}, {"swap": ROOMY}, {"host": ROOMY, "swap": ROOMY}]))
    worker = case.worker(
        chunk,
        blocks,
        admission=AdmissionConfig(policy=data.draw(st.sampled_from(list(POLICIES["admission.policy"])))),
        preemption="swap" if "swap" in tiers else "recompute",
        cache=CacheConfig(
            eviction=data.draw(st.sampled_from(list(POLICIES["cache.eviction"]))),
            tiers=TiersConfig(**FAST, **tiers),
        ),
    )
    for wave in range(2):
        ids = data.draw(
            st.lists(st.sampled_from(list(case.prompts)), min_size=1, unique=True), f"wave {wave}"
        )
        case.generate(worker, ids, n=data.draw(st.integers(1, 2), "n"))


# --- the built-in and the pulled model


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)])
def served(request, tmp_path_factory, raw_config_of):
    """Loaded by name, as an engine does."""
    name = request.param
    if name == "tiny":
        folder = tiny_folder(tmp_path_factory, raw_config_of)
    else:
        folder = model_folder(name)
        if not is_pulled(folder):
            pytest.skip(f"{name} is not pulled: run bench model pull {name}")
    config = EngineConfig(model=name, dtype="fp32")
    prompts = parity.prompts_of(load_tokenizer(config).encode(TEXT.read_text()), (*LENGTHS, 513, 700))
    model = parity.reference_model(folder, torch.float32)
    references = {id: parity.greedy(model, prompt, 6) for id, prompt in prompts.items()}
    return Case(load_runner(config), prompts, references, 6)


def tiny_folder(tmp_path_factory, raw_config_of):
    import json

    from safetensors.torch import save_file

    from engine.model.decoder_config import TINY
    from engine.model.weights import random_tensors

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(raw_config_of(TINY)))
    save_file(random_tensors(TINY, 0), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_served_by_name(served):
    """Cold in chunks beside decodes, then from cache."""
    worker = served.worker(chunk=64)
    assert not any(hits(served.generate(worker, served.prompts)).values())
    assert hits(served.generate(worker, served.prompts)) == all_but_the_last_token(served.prompts)


@pytest.mark.model
def test_smollm2_answers_sensibly():
    """A wrong order of rotary pairs would agree with transformers on the same folder, and talk nonsense."""
    if not is_pulled(model_folder("smollm2-135m")):
        pytest.skip("smollm2-135m is not pulled: run bench model pull smollm2-135m")
    config = EngineConfig(dtype="fp32")
    tokenizer, runner = load_tokenizer(config), load_runner(config)
    runner.allocate(8, BLOCK)
    known = tokenizer.encode(
        tokenizer.render_chat([{"role": "user", "content": "What is the capital of France?"}])
    )
    prompt, computed = len(known), 0
    for draw in range(7):
        row = Row(1, computed, array("I", known[computed:]), tuple(range(1, 9)), True, draw=draw)
        computed = len(known)
        known += runner.execute(StepPlan(draw, (row,))).tokens
    assert tokenizer.decode(known[prompt:]) == "The capital of France is Paris."
