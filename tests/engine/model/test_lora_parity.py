"""Greedy output with LoRA equals that of the peft library, for folders that the library itself has saved.

Base and adapters run in one batch, cut into chunks, read from cache, preempted and computed again.
"""

import json
import warnings
from dataclasses import dataclass, field, replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import save_file  # noqa: E402

from engine.config import AdmissionConfig, EngineConfig  # noqa: E402
from engine.kv.blocks import namespace_root  # noqa: E402
from engine.messages import LoadAdapter  # noqa: E402
from engine.model import load_runner, read_adapter  # noqa: E402
from engine.model.decoder_config import TINY  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from tests.engine.model import parity  # noqa: E402
from tests.engine.model.parity import BLOCK, Case, all_but_the_last_token, hits  # noqa: E402

pytestmark = pytest.mark.torch
GENERATED = 5
LENGTHS = (1, 15, 16, 33, 70, 129)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ADAPTERS = {
    "plain": {"r": 8, "lora_alpha": 12, "target_modules": "all-linear"},
    "fancy": {
        "r": 4,
        "lora_alpha": 6,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "rank_pattern": {"v_proj": 6, r"layers\.1\.mlp\.down_proj": 3},
        "alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 9},
    },
}


@dataclass
class Adapted(Case):
    """``names``: the adapter of each prompt; ``folders`` and ``digests`` by adapter."""

    names: dict = field(default_factory=dict)
    folders: dict = field(default_factory=dict)
    digests: dict = field(default_factory=dict)

    def worker(self, chunk, blocks=400, **changes):
        worker = super().worker(chunk, blocks, **changes)
        for name, folder in self.folders.items():
            worker.receive(LoadAdapter(self.digests[name], folder), next(self.clock))
        return worker

    def request(self, id, **changes):
        name = self.names[id]
        digest = self.digests.get(name)
        root = namespace_root(
            model="tiny", block_size=BLOCK, isolation_key="t", adapter=name, adapter_digest=digest
        )
        return replace(super().request(id, **changes), root=root, adapter=digest)


def make_adapter(model, folder, seed, settings):
    """Random weights, saved by the library."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a name on its way out
        wanted = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        adapted = peft.get_peft_model(model, wanted)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        adapted.save_pretrained(folder)


def load_adapter(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return peft.PeftModel.from_pretrained(model, folder).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw_config_of):
    """The tiny model, with its adapters below."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(raw_config_of(TINY)))
    save_file(random_tensors(TINY, 0), folder / "model.safetensors", metadata={"format": "pt"})
    for seed, (name, settings) in enumerate(ADAPTERS.items()):
        make_adapter(parity.reference_model(folder, torch.float32), folder / name, seed, settings)
    return folder


@pytest.fixture(scope="module", params=DTYPES)
def case(request, folder):
    """Every prompt with every adapter and without one. In bf16 two logits may trade places within twice the
    library's own largest rounding error."""
    dtype = DTYPES[request.param]
    config = EngineConfig(model="tiny", dtype=request.param)
    case = Adapted(load_runner(config), {}, {}, GENERATED)
    for name in (None, *ADAPTERS):
        model, exact = (parity.reference_model(folder, each) for each in (dtype, torch.float32))
        if name is not None:
            model, exact = (load_adapter(each, folder / name) for each in (model, exact))
            case.folders[name] = str(folder / name)
            case.digests[name] = read_adapter(config, case.folders[name]).digest
        if dtype is not torch.float32:
            case.close = max(case.close, 2 * difference(model, exact))
        for length in LENGTHS:
            id = len(case.prompts)
            case.names[id], case.prompts[id] = name, prompt(length)
            case.references[id] = parity.greedy(model, case.prompts[id], GENERATED)
    longest = {case.references[id].tokens for id, text in case.prompts.items() if len(text) == LENGTHS[-1]}
    assert len(longest) == 3, "the adapters change nothing"
    return case


def prompt(length):
    return [(length * 7 + i * i * 31 + i * 13) % 256 for i in range(length)]


def difference(one, other) -> float:
    """The largest of any logit."""
    ids = torch.tensor([prompt(LENGTHS[-1])])
    with torch.inference_mode():
        return float((one(ids).logits.float() - other(ids).logits).abs().max())


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_base_and_adapters_in_one_batch_cold_and_from_hits(case, chunk):
    """Every prompt with and without adapters at once: computed, each for itself, then read from cache."""
    worker = case.worker(chunk)
    assert not any(hits(case.generate(worker, case.prompts)).values()), "K/V of one adapter served another"
    assert hits(case.generate(worker, case.prompts)) == all_but_the_last_token(case.prompts)


def test_preempted_and_computed_again(case):
    """Who loses its blocks goes on with the adapter that it began with."""
    worker = case.worker(64, blocks=11, admission=AdmissionConfig(policy="prompt"))
    growing = [id for id, text in case.prompts.items() if case.names[id] and len(text) in (15, 16, 33)]
    done = case.generate(worker, growing)
    assert any(end.truth.preemptions for end in done.values()), "nobody was preempted"


def test_more_adapters_than_places(case):
    """With one place adapters take turns, and every text is still its own."""
    worker = case.worker(64, max_adapters=1)
    case.generate(worker, case.prompts)


def test_choices(case):
    """Forks of a prefill go on with its adapter."""
    worker = case.worker(64)
    case.generate(worker, [id for id, text in case.prompts.items() if len(text) == 33], n=3)
