"""Teacher-forced greedy decoding through a Worker, held against transformers (ENGINE E56).

Where the reference's two best logits are closer than the precision can tell apart, another token is
accepted, the reference's token is fed, and the comparison goes on.
"""

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import transformers

from engine.config import CostModel, EngineConfig, MemoryConfig, SchedulerConfig
from engine.kv.places import Sizes
from engine.messages import Done, Submit, TokensOut
from engine.request import Finish, Request, Sampling
from engine.runner.base import StepPlan, StepResult
from engine.worker import Worker
from tests.engine.said import apart

BLOCK = 16
CLOSE = 1e-4
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
        assert not result.failed
        forced, forked = list(result.tokens), {}
        for index, row in enumerate(plan.rows):
            if row.samples:
                drawn = (result.tokens[index], *result.forked.get(index, ()))
                right = self._compare(row, drawn)
                forced[index] = right
                if row.forks:
                    assert len(drawn) == 1 + row.forks
                    forked[index] = (right,) * row.forks
        return replace(result, tokens=tuple(forced), forked=forked)

    def _compare(self, row, drawn) -> int:
        """The reference's token."""
        reference = self.references[row.id]
        right, gap = reference.tokens[row.draw], reference.gaps[row.draw]
        self.differed += [(row.id, row.choice, row.draw, t, right, gap) for t in drawn if t != right]
        return right


def reference_model(folder: Path, dtype: torch.dtype):
    """The model in transformers; like ours it goes on after an end token."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def greedy(model, prompt, generated: int) -> Reference:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=generated,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        ),
    )
    best = [logits[0].float().topk(2).values.tolist() for logits in out.logits]
    tokens = out.sequences[0, len(prompt) :].tolist()
    assert len(tokens) == generated, "the reference stopped early"
    return Reference(tuple(tokens), tuple(first - second for first, second in best))


@dataclass
class Case:
    """A runner with prompts, and what a correct one says to them. ``close``: the gap between the two best
    logits below which another token is no error."""

    runner: object
    prompts: dict
    references: dict
    generated: int
    close: float = CLOSE
    clock: Iterator[int] = field(default_factory=itertools.count)

    def worker(self, chunk: int, blocks: int = 400, **changes) -> Worker:
        """A fresh worker over cleared memory."""
        config = EngineConfig(
            cost=CostModel(a=1e-9, b=1e-9),  # so fast that its backlog takes all prompts at once
            memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
            scheduler=SchedulerConfig(max_step_tokens=2 * chunk, prefill_chunk=chunk),
            **changes,
        )
        sizes = Sizes.of(config.cache.tiers, self.runner.kv_bytes_per_token * BLOCK)
        self.runner.allocate(blocks, BLOCK, sizes.slots)
        names = ("eos_ids", "max_positions", "vocabulary", "kv_bytes_per_token")
        worker = Worker(config, 0, "parity", **{name: getattr(self.runner, name) for name in names})
        # On the clock of these tests steps take no time: what moves really take would say nothing beside it.
        worker.memory.transfers.prices.learn = lambda *measured: None
        return worker

    def generate(self, worker: Worker, ids, n: int = 1) -> dict[int, Done]:
        """Serve these prompts at the same time, with ``n`` choices each, and check every token; the Done
        messages by prompt."""
        forced = Forced(self.runner, self.references)
        for id in ids:
            worker.receive(Submit(self.request(id, n=n)), next(self.clock))
        done, tokens = {}, {(id, choice): [] for id in ids for choice in range(n)}
        for now in self.clock:
            plan = worker.plan(now)
            assert plan is not None, "the worker has work and plans none"
            worker.commit(plan, forced.execute(plan), now)
            for message in apart(worker.take_outbox()):
                if isinstance(message, Done):
                    done[message.id] = message
                elif isinstance(message, TokensOut):
                    tokens[message.id, message.choice] += message.ids
            if len(done) == len(ids):
                break
        wrong = [difference for difference in forced.differed if difference[-1] >= self.close]
        assert not wrong, f"(prompt, choice, index, ours, theirs, gap): {wrong}"
        assert all(message.reason is Finish.LENGTH for message in done.values())
        assert tokens == {(id, choice): list(self.references[id].tokens) for id, choice in tokens}
        assert not worker.audit()["violations"]
        return done

    def request(self, id: int, **changes) -> Request:
        return Request(
            id=id,
            tokens=array("I", self.prompts[id]),
            root=ROOT,
            digests=(),
            out_max=self.generated,
            sampling=Sampling(ignore_eos=True),
            **changes,
        )


def prompts_of(text: list[int], lengths) -> dict[int, list[int]]:
    """Prompts of these lengths, each from another place of the text."""
    return {number: text[37 * number : 37 * number + n] for number, n in enumerate(lengths)}


def hits(done) -> dict[int, int]:
    return {id: message.truth.hit_device for id, message in done.items()}


def all_but_the_last_token(prompts) -> dict[int, int]:
    return {id: (len(prompt) - 1) // BLOCK * BLOCK for id, prompt in prompts.items()}
