"""Greedy output with LoRA equals that of the peft library, for folders that the library itself has saved.

Base and adapters run in one batch, cut into chunks, read from cache, preempted and computed again.
Teacher-forced: where the reference's two best logits are closer than 1e-4, another token is accepted and the
reference's is fed (ENGINE E56).
"""

from __future__ import annotations

import json
import warnings
from array import array
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import save_file  # noqa: E402

from engine import messages as m  # noqa: E402
from engine.config import CostModel, EngineConfig, MemoryConfig, SchedulerConfig  # noqa: E402
from engine.kv.blocks import namespace_root  # noqa: E402
from engine.model import load_runner, read_adapter  # noqa: E402
from engine.model.decoder_config import TINY  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from engine.request import Finish, Request, Sampling  # noqa: E402
from engine.worker import Worker  # noqa: E402

pytestmark = pytest.mark.torch
CLOSE = 1e-4
GENERATED = 5
BLOCK = 16
LENGTHS = (1, 15, 16, 33, 70, 129)
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


@dataclass(frozen=True)
class Job:
    """One request and what the reference answers, with the gaps between its two best logits."""

    adapter: str | None
    prompt: array
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Site:
    runner: object
    folders: dict[str, str]
    digests: dict[str | None, str | None]
    jobs: tuple[Job, ...]


def greedy(model, adapter, prompt) -> Job:
    ids = torch.tensor([prompt.tolist()])
    wanted = transformers.GenerationConfig(
        max_new_tokens=GENERATED,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=wanted)
    best = [logits[0].topk(2).values.tolist() for logits in out.logits]
    tokens = out.sequences[0, len(prompt) :].tolist()
    assert len(tokens) == GENERATED, "the reference stopped early"
    return Job(adapter, prompt, tuple(tokens), tuple(first - second for first, second in best))


def adapt(fresh, folder, seed, settings):
    """Save random weights with the library, and let it load what it has saved."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a name on its way out
        wanted = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        adapted = peft.get_peft_model(fresh(), wanted)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        adapted.save_pretrained(folder)
        return peft.PeftModel.from_pretrained(fresh(), folder).eval()


def prompt(length: int) -> array:
    return array("I", [(length * 7 + i * i * 31 + i * 13) % 256 for i in range(length)])


@pytest.fixture(scope="module")
def site(tmp_path_factory, raw_config_of) -> Site:
    base = tmp_path_factory.mktemp("tiny")
    (base / "config.json").write_text(json.dumps(raw_config_of(TINY)))
    save_file(random_tensors(TINY, 0), base / "model.safetensors", metadata={"format": "pt"})

    def fresh():
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        return model

    config = EngineConfig(model="tiny", dtype="fp32")
    plain = fresh()
    jobs = [greedy(plain, None, prompt(length)) for length in LENGTHS]
    folders, digests = {}, {None: None}
    for seed, (name, settings) in enumerate(ADAPTERS.items()):
        folder = base / name
        adapted = adapt(fresh, folder, seed, settings)
        jobs += [greedy(adapted, name, prompt(length)) for length in LENGTHS]
        folders[name], digests[name] = str(folder), read_adapter(config, str(folder)).digest
    texts = {(job.adapter, job.tokens) for job in jobs if len(job.prompt) == 70}
    assert len({tokens for _, tokens in texts}) == 3, "the adapters change nothing"
    return Site(load_runner(config), folders, digests, tuple(jobs))


class Run:
    """A worker over the site's runner that is fed the reference's tokens."""

    def __init__(self, site: Site, chunk: int, blocks: int = 400, **config) -> None:
        self.site = site
        self.now = 0
        settings = EngineConfig(
            cost=CostModel(b=1e-9),
            memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
            scheduler=SchedulerConfig(max_step_tokens=2 * chunk, prefill_chunk=chunk),
            **config,
        )
        site.runner.allocate(blocks, BLOCK)
        facts = {name: getattr(site.runner, name) for name in ("eos_ids", "max_positions", "vocabulary")}
        self.worker = Worker(settings, 0, "parity", **facts)
        for name, folder in site.folders.items():
            self.tell(m.LoadAdapter(site.digests[name], folder))

    def tell(self, message) -> None:
        self.worker.receive(message, self.now)

    def serve(self, before_step=lambda number: None) -> dict[int, m.Done]:
        """All jobs at once; every token is compared. ``before_step`` may do anything to the worker."""
        jobs, done, said = self.site.jobs, {}, {}
        for id, job in enumerate(jobs, start=1):
            self.tell(m.Submit(self.request(id, job)))
        wrong = []
        for number in range(1000):
            before_step(number)
            self.now += 1
            plan = self.worker.plan(self.now)
            if plan is None:  # only while blocks are kept from it
                continue
            result = self.site.runner.execute(plan)
            assert not result.failed, result.errors
            forced = list(result.tokens)
            for index, row in enumerate(plan.rows):
                if row.samples:
                    job = jobs[row.id - 1]
                    forced[index] = job.tokens[row.draw]
                    if result.tokens[index] != forced[index] and job.gaps[row.draw] >= CLOSE:
                        wrong.append((job.adapter, len(job.prompt), row.draw, job.gaps[row.draw]))
            self.worker.commit(plan, replace(result, tokens=tuple(forced)), self.now)
            for message in self.worker.take_outbox():
                if isinstance(message, m.Done):
                    done[message.id] = message
                elif isinstance(message, m.TokensOut):
                    said.setdefault(message.id, []).extend(message.ids)
            if len(done) == len(jobs):
                break
        assert not wrong, f"(adapter, prompt, index, gap): {wrong}"
        assert all(end.reason is Finish.LENGTH for end in done.values()), done
        assert said == {id: list(job.tokens) for id, job in enumerate(jobs, start=1)}
        assert not self.worker.audit()["violations"]
        return done

    def request(self, id: int, job: Job) -> Request:
        digest = self.site.digests[job.adapter]
        root = namespace_root(
            model="tiny", block_size=BLOCK, isolation_key="t", adapter=job.adapter, adapter_digest=digest
        )
        sampling = Sampling(ignore_eos=True)
        return Request(id, job.prompt, root, (), GENERATED, sampling=sampling, adapter=digest)


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_base_and_adapters_in_one_batch_cold_and_from_hits(site, chunk):
    """Every prompt with and without adapters at once: computed, each for itself, then read from cache."""
    run = Run(site, chunk)
    cold = run.serve()
    assert not any(done.truth.hit_device for done in cold.values()), "K/V of one adapter served another"
    warm = run.serve()
    for id, job in enumerate(site.jobs, start=1):
        assert warm[id].truth.hit_device == (len(job.prompt) - 1) // BLOCK * BLOCK


def test_preempted_and_computed_again(site):
    """Who loses its blocks goes on with the adapter that it began with."""
    run = Run(site, 64, blocks=120)
    done = run.serve(lambda number: run.tell(m.Ballast(120 if number % 8 > 3 else 0)))
    preempted = {site.jobs[id - 1].adapter for id, end in done.items() if end.truth.preemptions}
    assert preempted >= {"plain", "fancy"}, "nobody with an adapter was preempted"


def test_more_adapters_than_places(site):
    """With one place adapters take turns, and every text is still its own."""
    run = Run(site, 64, max_adapters=1)
    run.serve()
