"""Random life of a worker: whatever happens in whatever order, K1 to K9 hold after every step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import messages as m
from engine.request import Finish
from engine.sched import admission

SECOND = 1_000_000_000
PHASES = ("admitted", "prefill:1", "prefill:2", "decode:1", "decode:3")


class Life(RuleBasedStateMachine):
    """The bench audits after every message and step; the runner's oracle checks every read."""

    bench: type

    @initialize(
        blocks=st.sampled_from([10, 16, 24]),
        policy=st.sampled_from(["lifetime", "eager"]),
        eviction=st.sampled_from(["lru", "ttl"]),
        ttl=st.sampled_from([None, 0.3]),
        budget=st.sampled_from([5, 12]),
        preemption=st.sampled_from(["recompute", "none"]),
    )
    def start(self, blocks, policy, eviction, ttl, budget, preemption):
        if policy == "eager":
            preemption = "recompute"
        self.b = self.bench(
            blocks=blocks, policy=policy, eviction=eviction, ttl=ttl, budget=budget, preemption=preemption
        )
        self.policy = policy
        self.holds = 0
        self.reference = {}

    @rule(
        length=st.integers(1, 28),
        family=st.integers(0, 2),
        own=st.integers(0, 6),
        out_max=st.integers(1, 10),
        rank=st.integers(0, 1),
        tenant=st.sampled_from(["a", "b"]),
        deadline=st.sampled_from([None, None, 0.05, 0.4]),
    )
    def submit(self, length, family, own, out_max, rank, tenant, deadline):
        tokens = [family * 100 + index for index in range(length)] + [3000 + self.b.next_id] * own
        id = self.b.submit(
            tokens,
            out_max,
            rank=rank,
            root=self.b.root(tenant=tenant),
            client_id=f"c{self.b.next_id}",
            deadline=None if deadline is None else self.b.now + int(deadline * SECOND),
        )
        self.reference[id] = (tokens, out_max)

    @rule(data=st.data(), reason=st.sampled_from([Finish.CANCELLED, Finish.STOP, Finish.EXPIRED]))
    def cancel(self, data, reason):
        self.b.cancel(data.draw(st.integers(1, self.b.next_id + 1)), reason)
        if self.b.worker.roster.cancelled_early(self.b.next_id + 1):
            self.b.next_id += 1  # the next request must not be the one that was cancelled beforehand

    @rule(data=st.data())
    def recall(self, data):
        self.b.send(m.Recall(data.draw(st.integers(1, self.b.next_id + 1))))

    @precondition(lambda self: self.b.flying is None)
    @rule()
    def begin(self):
        self.b.begin()

    @precondition(lambda self: self.b.flying is not None)
    @rule()
    def end(self):
        self.b.end()

    @precondition(lambda self: self.b.flying is None)
    @rule(times=st.integers(1, 6))
    def steps(self, times):
        for _ in range(times):
            self.b.step()

    @precondition(lambda self: self.b.flying is not None)
    @rule()
    def fail(self):
        plan, self.b.flying = self.b.flying, None
        self.b.worker.step_failed(plan, "boom", self.b.now)
        self.b.collect()

    @rule(phase=st.sampled_from(PHASES))
    def hold(self, phase):
        self.holds += 1
        self.b.send(m.Hold(self.holds, phase, None))

    @rule(data=st.data())
    def release(self, data):
        self.b.send(m.Release(data.draw(st.integers(0, self.holds))))

    @rule()
    def clear(self):
        self.b.send(m.Clear())

    @rule(blocks=st.integers(0, 12))
    def ballast(self, blocks):
        self.b.send(m.Ballast(blocks))

    @rule(
        change=st.sampled_from(
            [
                *({"prefill_chunk": 3}, {"max_running": 2}, {"max_running": 8}, {"kv_headroom": 0.1}),
                *({"ttl": None}, {"ttl": 0.2}, {"eviction": "lru"}),
                *({"prefix_cache": False}, {"prefix_cache": True}),
            ]
        )
    )
    def configure(self, change):
        self.b.send(m.Configure(change))

    @precondition(lambda self: self.policy == "lifetime")  # "none" needs it (E26)
    @rule(preemption=st.sampled_from(["recompute", "none"]))
    def configure_preemption(self, preemption):
        self.b.send(m.Configure({"preemption": preemption}))

    @rule(milliseconds=st.integers(1, 400))
    def wait(self, milliseconds):
        self.b.now += milliseconds * 1_000_000

    def teardown(self):
        """Heal everything and run on: all requests end, nothing is left, texts are as if alone."""
        if not hasattr(self, "b"):
            return
        if self.b.flying is not None:
            self.b.end()
        self.b.send(m.Ballast(0))
        for hold in range(1, self.holds + 1):
            self.b.send(m.Release(hold))
        self.b.run()
        self.b.drained()
        alone = self.bench(blocks=24)
        for id, (tokens, out_max) in self.reference.items():
            if id in self.b.output:
                cold = alone.output[alone.serve(tokens, out_max).id]
                assert self.b.output[id] == cold[: len(self.b.output[id])]
            if id in self.b.done:
                truth = self.b.done[id].truth
                assert truth.generated == len(self.b.output.get(id, ()))
                if truth.first_scheduled is not None:
                    assert truth.prompt >= truth.computed + truth.hit_device
                    if truth.generated and not truth.preemptions:
                        assert truth.prompt == truth.computed + truth.hit_device
                    assert sum(miss.tokens for miss in truth.misses) == truth.prompt - truth.hit_device
                flagged = self.b.done[id].reason in (Finish.CANCELLED, Finish.EXPIRED)
                assert (truth.cancel_flagged is not None) == (truth.reclaimed is not None) == flagged
                assert truth.steps_after_cancel <= 1 >= truth.steps_to_reclaim


def test_random_life(bench, monkeypatch):
    """Any sequence of submits, cancels, steps, holds, clears, ballast and failures keeps K1 to K9."""
    monkeypatch.setitem(
        admission.ADMISSIONS, "eager", lambda c, books: -(-c.tokens // 4) - c.ref_hit <= books.free
    )
    Life.bench = bench
    run_state_machine_as_test(
        Life, settings=settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
    )
