"""A random life for a bench: whatever happens in whatever order, and what must be true at its end.

One body of actions for everybody who wants trouble: Hypothesis (which shrinks), seeded runs by the thousand,
and the mutation tests, which break the engine and expect that some life notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from engine import messages as m
from engine.kv.eviction import EVICTIONS
from engine.request import Finish, Request, Sampling
from engine.runner.base import Move, Transfer
from engine.sched.admission import ADMISSIONS

T = TypeVar("T")
SECOND = 1_000_000_000
PHASES = ("admitted", "prefill:1", "prefill:2", "transfer:1", "decode:1", "decode:3")
FLAGGED = (Finish.CANCELLED, Finish.EXPIRED)


class Dice(Protocol):
    """What a life draws from: ``random.Random``, or Hypothesis behind the same two methods."""

    def randint(self, a: int, b: int) -> int: ...
    def choice(self, seq: Sequence[T]) -> T: ...


CONTROLS: tuple[dict[str, Any], ...] = (
    *({"prefill_chunk": 3}, {"prefill_chunk": 64}, {"max_running": 1}, {"max_running": 8}),
    *(
        {"max_step_tokens": 4},
        {"max_step_tokens": 24},
        {"min_prefill_share": 0.0},
        {"min_prefill_share": 1.0},
    ),
    *({"max_partial_prefills": 1}, {"long_prefill_cap": 2}, {"long_prefill_cap": None}),
    *({"kv_headroom": 0.0}, {"kv_headroom": 0.2}, {"ttl": None}, {"ttl": 0.2}),
    *({"prefix_cache": False}, {"prefix_cache": True}, {"backfill": False}, {"backfill": True}),
    *({"priority_preemption": True}, {"priority_preemption": False}, {"busy_ratio": 0.0}, {"aging": 0.05}),
    *(
        {"copied_first": True},
        {"reuse_horizon": 0.1},
        {"footprint_of": "session"},
        {"footprint_of": "tenant"},
    ),
    *({"eviction": name} for name in EVICTIONS),
)
ADAPTERS = ("red", "blue", "green")
ENDS = (3, 11)
"""Ids that end an output where the request names them; of ``DRAWN``, so that it happens."""
DRAWN = 40
EXPECTED = ("boom", "is no number", "not known to this worker", "are usable")
"""Errors that a life brings about itself."""
WEIGHTS = {
    "submit": 12,
    "tick": 14,
    "steps": 16,
    "cancel": 3,
    "fail": 1,
    "spoil": 1,
    "wait": 2,
    "recall": 1,
    "adapters": 1,
    "lose": 1,
    "hold": 1,
    "release": 1,
    "configure": 3,
    "ballast": 2,
    "clear": 1,
}
ACTIONS = tuple(name for name, weight in WEIGHTS.items() for _ in range(weight))


class Life:
    """Drives one bench by what the dice say."""

    def __init__(self, bench: type[Any], dice: Dice, **settings: Any) -> None:
        policy = dice.choice(tuple(ADMISSIONS))
        chosen: dict[str, Any] = {
            "blocks": dice.choice((10, 16, 24)),
            "budget": dice.choice((5, 12, 40)),
            "max_running": dice.choice((3, 64)),
            "policy": policy,
            "eviction": dice.choice(tuple(EVICTIONS)),
            "ttl": dice.choice((None, None, 0.3)),
            "preemption": self._preemption(dice, policy),
            "priority_preemption": dice.choice((False, True)),
            "max_adapters": dice.choice((1, 8)),
            "drawn": DRAWN,
        }
        if dice.choice((False, True)):
            chosen |= {
                "host": dice.choice((0, 2, 12)),
                "disk": dice.choice((0, 3, 30)),
                "moves": dice.choice((2, 6, 64)),
                "copied_first": dice.choice((False, True)),
            }
            chosen["disk"] *= chosen["host"] > 0
        chosen["priority_preemption"] &= chosen["preemption"] != "none"
        if chosen["preemption"] == "recompute" and dice.choice((False, True)):
            chosen |= {"preemption": "swap", "swap": dice.choice((3, 20))}
        self.bench = bench(**(chosen | settings))
        self.losing = 0
        """So many of the next moves between tiers do not happen."""
        self.bench.runner.fails = self._fails
        self.dice = dice
        self.holds = 0
        self.stopped: set[int] = set()
        """Requests that were cancelled, wholly or a choice of them, because of a stop string."""
        self.spaces: dict[int, bytes] = {}
        """Tenant and adapter of each request, whatever its root says."""
        self.bench.runner.namespace = lambda id: self.spaces[id]

        for adapter in ADAPTERS[:2]:
            self.bench.send(m.LoadAdapter(adapter, f"/{adapter}"))

    @staticmethod
    def _preemption(dice: Dice, policy: str) -> str:
        """``none`` needs lifetime (E26)."""
        return dice.choice(("recompute", "recompute", "none" if policy == "lifetime" else "recompute"))

    def act(self, name: str) -> None:
        getattr(self, name)()

    def run(self, actions: int) -> None:
        """So many random actions, then the end."""
        for _ in range(actions):
            self.act(self.dice.choice(ACTIONS))
        if self.dice.randint(0, 5) == 0:
            self.drain()
        self.settle()

    # -- what may happen ----------------------------------------------------------------------

    def submit(self) -> None:
        """One to three requests, most of them with a beginning that others have too."""
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            self._submit()

    def _submit(self) -> None:
        dice, b = self.dice, self.bench
        family, length = dice.choice((0, 0, 100)), dice.randint(1, 24)
        own = [3000 + b.next_id] * dice.choice((0, 0, 1, 4))
        deadline = dice.choice((None, None, None, None, None, None, 0.05, 0.4))
        adapter = dice.choice((None, None, None, None, None, *ADAPTERS))
        tenant = dice.choice(("a", "a", "a", "b"))
        self.spaces[b.next_id + 1] = f"{tenant}/{adapter}".encode()
        b.submit(
            [family + index for index in range(length)] + own,
            dice.choice((1, 1, 2, 3, 6, 11)),
            rank=dice.randint(0, 2),
            root=b.root(tenant=tenant, adapter=adapter),
            tenant=tenant,
            adapter=adapter,
            client_id=f"c{b.next_id}",
            session=dice.choice((None, "x", "y")),
            deadline=None if deadline is None else b.now + int(deadline * SECOND),
            life=dice.choice((None, None, None, SECOND // 5, 2 * SECOND)),
            n=dice.choice((1, 1, 1, 2, 3)),
            sampling=Sampling(
                temperature=dice.choice((0.0, 1.0)),
                seed=dice.randint(0, 3),
                ignore_eos=True,
                stop_ids=dice.choice(((), (), ENDS)),
                min_tokens=dice.choice((0, 0, 2)),
            ),
        )

    def tick(self) -> None:
        """A step begins, or the one under way ends."""
        if self.bench.flying is None:
            self.bench.begin()
        else:
            self.bench.end()

    def steps(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self.tick()

    def fail(self) -> None:
        if self.bench.flying is not None:
            self.bench.fail(executed=self.dice.choice((True, False)))

    def spoil(self) -> None:
        """One row of the step under way comes out as no number."""
        if self.bench.flying is not None and self.bench.flying.rows:
            self.bench.end(failed=(self.dice.randint(0, len(self.bench.flying.rows) - 1),))

    def cancel(self) -> None:
        """Anybody, in any phase; also who has ended, is not known or has not come yet."""
        id = self.dice.randint(1, self.bench.next_id + 1)
        reason = self.dice.choice((Finish.CANCELLED, Finish.STOP, Finish.EXPIRED))
        choice = self.dice.choice((None, None, 0, 1))
        if choice is not None:
            reason = Finish.STOP  # one choice ends alone when a stop string was found in its text
        if reason is Finish.STOP:
            self.stopped.add(id)
        self.bench.send(m.Cancel(id, reason, choice))

    def adapters(self) -> None:
        """One comes, goes, or comes again with other content under another digest."""
        adapter = self.dice.choice(ADAPTERS)
        load = m.LoadAdapter(adapter, f"/{adapter}")
        self.bench.send(self.dice.choice((load, m.UnloadAdapter(adapter))))

    def recall(self) -> None:
        self.bench.send(m.Recall(self.dice.randint(1, self.bench.next_id + 1)))

    def lose(self) -> None:
        """A torn file, a full disk."""
        self.losing = self.dice.randint(1, 3)

    def _fails(self, move: Transfer) -> bool:
        fails = self.losing > 0 and move.move is not Move.COPY
        self.losing -= fails
        return fails

    def hold(self) -> None:
        self.holds += 1
        self.bench.send(m.Hold(self.holds, self.dice.choice(PHASES), None))

    def release(self) -> None:
        self.bench.send(m.Release(self.dice.randint(0, self.holds)))

    def clear(self) -> None:
        self.bench.send(m.Clear())

    def drain(self) -> None:
        """Nobody waits who has not started, and nobody new comes in."""
        self.bench.send(m.Drain())
        assert all(s.job.started for s in self.bench.worker.scheduler.waiting.values())
        self.submit()

    def ballast(self) -> None:
        self.bench.send(m.Ballast(self.dice.randint(0, 12)))

    def configure(self) -> None:
        change = dict(self.dice.choice(CONTROLS))
        if self.dice.randint(0, 2) == 0:  # preemption "none" needs lifetime (E26)
            policy = self.dice.choice(tuple(ADMISSIONS))
            change = {"admission": policy, "preemption": self._preemption(self.dice, policy)}
            if change["preemption"] == "none":
                change["priority_preemption"] = False
            change |= {"priority_preemption": False} if change["preemption"] == "none" else {}
        self.bench.send(m.Configure(change))

    def wait(self) -> None:
        self.bench.now += self.dice.randint(1, 400) * 1_000_000

    # -- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Heal everything and run on: all requests end, nothing is left, texts are as if alone."""
        b = self.bench
        if b.flying is not None:
            b.end()
        b.send(m.Ballast(0))
        for hold in range(1, self.holds + 1):
            b.send(m.Release(hold))
        b.run()
        b.drained()
        b.taught()
        for id, done in b.done.items():
            self._true(id, done)

    def _true(self, id: int, done: m.Done) -> None:
        """What the truth says of a request agrees with what was heard of it (E18, E34)."""
        truth, request = done.truth, self.bench.requests[id]
        said = sum(len(ids) for (of, _), ids in self.bench.choices.items() if of == id)
        assert truth.generated == said
        hit = truth.hit_device + truth.hit_host + truth.hit_disk
        assert truth.prompt == len(request.tokens) >= truth.computed + hit
        if truth.first_scheduled is not None:
            assert sum(miss.tokens for miss in truth.misses) == truth.prompt - hit
            if truth.generated and not truth.preemptions:
                assert truth.prompt == truth.computed + hit
        flagged = done.reason in FLAGGED
        assert (truth.cancel_flagged is not None) == (truth.reclaimed is not None) == flagged
        assert truth.steps_after_cancel <= 1 >= truth.steps_to_reclaim
        if done.reason is Finish.ERROR:
            assert any(word in str(done.error) for word in EXPECTED), done.error
        for choice in range(request.n):
            self._whole(done, request, choice)

    def _whole(self, done: m.Done, request: Request, choice: int) -> None:
        """No choice says more than it may, or anything after its end."""
        said, sampling = self.bench.choices.get((request.id, choice), []), request.sampling
        ends = [index for index, token in enumerate(said) if token in sampling.stop_ids]
        assert len(said) <= request.out_max
        assert all(index == len(said) - 1 for index in ends)
        if done.reason is Finish.STOP and request.n == 1:
            assert ends or request.id in self.stopped
        assert not ends or len(said) > min(sampling.min_tokens, request.out_max)
