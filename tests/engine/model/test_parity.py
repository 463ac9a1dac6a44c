"""Greedy output equals transformers', however the scheduler cuts, batches and caches.

Teacher-forced: where the reference's two best logits are closer than 1e-4, another token is accepted,
the reference's token is fed, and the comparison goes on (ENGINE E56).
"""

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from engine.config import CostModel, EngineConfig, MemoryConfig, SchedulerConfig  # noqa: E402
from engine.messages import Done, Submit  # noqa: E402
from engine.model import load_runner, load_tokenizer  # noqa: E402
from engine.model.llama_config import TINY  # noqa: E402
from engine.model.pull import is_pulled, model_folder  # noqa: E402
from engine.request import Finish, Request, Sampling  # noqa: E402
from engine.runner.base import Row, StepPlan, StepResult  # noqa: E402
from engine.worker import Worker  # noqa: E402

pytestmark = pytest.mark.torch

LENGTHS = (
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    31,
    32,
    33,
    48,
    49,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    200,
    257,
    400,
    513,
    700,
)
GENERATED = 6
CLOSE = 1e-4
BLOCK = 16
TEXT = Path(__file__).parents[3] / "LICENSE"
ROOT = bytes(16)


@dataclass(frozen=True)
class Reference:
    """What transformers generates greedily, and how clear each choice was."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


class Forced:
    """A runner that feeds the reference's tokens on and keeps what differed."""

    def __init__(self, runner, references):
        self.runner = runner
        self.references = references
        self.differed = []

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.runner.execute(plan)
        forced = list(result.tokens)
        for index, (row, token) in enumerate(zip(plan.rows, result.tokens, strict=True)):
            if row.samples:
                reference = self.references[row.id]
                forced[index] = reference.tokens[row.draw]
                if token != forced[index]:
                    self.differed.append((row.id, row.draw, token, forced[index], reference.gaps[row.draw]))
        return replace(result, tokens=tuple(forced))


def greedy(model, prompt) -> Reference:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=GENERATED,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        ),
    )
    best = [logits[0].topk(2).values.tolist() for logits in out.logits]
    tokens = out.sequences[0, len(prompt) :].tolist()
    assert len(tokens) == GENERATED, "the reference stopped early"
    return Reference(tuple(tokens), tuple(first - second for first, second in best))


@dataclass
class Case:
    runner: object
    prompts: dict
    references: dict
    clock: Iterator[int] = field(default_factory=itertools.count)

    def worker(self, chunk: int) -> Worker:
        """A fresh worker over cleared memory."""
        config = EngineConfig(
            cost=CostModel(b=1e-9),  # so fast that its backlog takes all prompts at once
            memory=MemoryConfig(kv_blocks=400, block_size=BLOCK),
            scheduler=SchedulerConfig(max_step_tokens=2 * chunk, prefill_chunk=chunk),
        )
        self.runner.allocate(400, BLOCK)
        facts = {name: getattr(self.runner, name) for name in ("eos_ids", "max_positions", "vocabulary")}
        return Worker(config, 0, "parity", **facts)

    def generate(self, worker: Worker, ids) -> dict[int, Done]:
        """Serve these prompts at the same time and check every token; the Done messages by prompt."""
        forced = Forced(self.runner, self.references)
        for id in ids:
            request = Request(
                id=id,
                tokens=array("I", self.prompts[id]),
                root=ROOT,
                digests=(),
                out_max=GENERATED,
                sampling=Sampling(ignore_eos=True),
            )
            worker.receive(Submit(request), next(self.clock))
        done, generated = {}, {id: [] for id in ids}
        for now in self.clock:
            plan = worker.plan(now)
            assert plan is not None, "the worker has work and plans none"
            worker.commit(plan, forced.execute(plan), now)
            for message in worker.take_outbox():
                if isinstance(message, Done):
                    done[message.id] = message
                elif hasattr(message, "ids"):
                    generated[message.id] += message.ids
            if len(done) == len(generated):
                break
        wrong = [difference for difference in forced.differed if difference[-1] >= CLOSE]
        assert not wrong, f"(prompt, index, ours, theirs, gap): {wrong}"
        assert all(message.reason is Finish.LENGTH for message in done.values())
        assert generated == {id: list(self.references[id].tokens) for id in ids}
        assert not worker.audit()["violations"]
        return done


def tiny_folder(tmp_path_factory, raw_config_of):
    import json

    from safetensors.torch import save_file

    from engine.model.weights import random_tensors

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(raw_config_of(TINY)))
    save_file(random_tensors(TINY, 0), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)])
def case(request, tmp_path_factory, raw_config_of):
    name = request.param
    if name == "tiny":
        folder = tiny_folder(tmp_path_factory, raw_config_of)
    else:
        folder = model_folder(name)
        if not is_pulled(folder):
            pytest.skip(f"{name} is not pulled: run bench model pull {name}")
    config = EngineConfig(model=name, dtype="fp32")
    text = load_tokenizer(config).encode(TEXT.read_text())
    prompts = {number: text[37 * number : 37 * number + n] for number, n in enumerate(LENGTHS)}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # both sides go on after an end token
    runner = load_runner(config)
    return Case(runner, prompts, {number: greedy(model, prompt) for number, prompt in prompts.items()})


def hits(done) -> dict[int, int]:
    return {id: message.truth.hit_device for id, message in done.items()}


def all_but_the_last_token(prompts) -> dict[int, int]:
    return {id: (len(prompt) - 1) // BLOCK * BLOCK for id, prompt in prompts.items()}


def test_alone_cold_and_from_hits(case):
    """One prompt at a time: first computed, then read from cache up to the last-token rule."""
    worker = case.worker(chunk=1024)
    for id in case.prompts:
        assert hits(case.generate(worker, [id])) == {id: 0}
    for id, prompt in case.prompts.items():
        assert hits(case.generate(worker, [id])) == all_but_the_last_token({id: prompt})


def test_together_in_chunks_cold_and_from_hits(case):
    """All prompts at once, in chunks of 64 beside decodes; then again from cache."""
    worker = case.worker(chunk=64)
    assert not any(hits(case.generate(worker, case.prompts)).values())
    assert hits(case.generate(worker, case.prompts)) == all_but_the_last_token(case.prompts)


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
