"""The worker's messages: what each one does, and what is answered."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from engine import messages as m
from engine.config import EngineConfig, MemoryConfig
from engine.request import Finish, Sampling
from engine.runner.base import StepResult
from engine.sched import admission
from engine.worker import Worker

SECOND = 1_000_000_000


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setitem(
        admission.ADMISSIONS, "eager", lambda c, books: -(-c.tokens // 4) - c.ref_hit <= books.free
    )


def test_one_request_from_submit_to_done(bench, tokens):
    """Progress per chunk, one TokensOut per token, one Done with the whole truth."""
    b = bench(blocks=16, budget=8)
    done = b.serve(tokens(12), 3)
    kinds = [type(message).__name__ for message in b.said]
    assert kinds == [
        *("KvEvents", "Progress"),  # chunk of 8
        *("KvEvents", "Progress", "TokensOut"),  # chunk of 4 draws the first token
        *("TokensOut", "TokensOut", "Done"),
    ]
    assert [p.computed for p in b.told(m.Progress)] == [8, 12]
    truth = done.truth
    assert (done.reason, done.attempt, truth.worker, truth.incarnation) == (Finish.LENGTH, 1, 0, "w0")
    assert (truth.prompt, truth.computed, truth.generated, truth.recomputed) == (12, 12, 3, 0)
    assert (truth.steps_prefill, truth.steps_decode, truth.blocks_peak) == (2, 2, 4)
    assert truth.rows_mean == 1.0
    assert truth.step_tokens_mean == (8 + 4 + 1 + 1) / 4
    assert truth.first_scheduled == 0
    assert truth.first_scheduled < truth.prefill_done < truth.finished == b.now
    assert truth.cancel_phase is None
    b.drained()


def test_batch_participation(bench, tokens):
    """Rows and tokens of the steps that a request took part in are averaged over those steps."""
    b = bench(blocks=32)
    first = b.submit(tokens(4), 2)
    second = b.submit(tokens(8, seed=1), 1)
    b.run()
    assert b.done[first].truth.rows_mean == (2 + 1) / 2
    assert b.done[first].truth.step_tokens_mean == (12 + 1) / 2
    assert b.done[second].truth.rows_mean == 2.0


def test_text_does_not_depend_on_company(bench, tokens):
    """Alone, batched, chunked, from a hit or after preemption: the same tokens."""
    alone = bench(blocks=64)
    expected = alone.output[alone.serve(tokens(30), 8).id]
    crowd = bench(blocks=64, budget=12, chunk=5)
    ids = [crowd.submit(tokens(30), 8)]
    crowd.step()
    ids += [crowd.submit(tokens(7, seed=3), 9), crowd.submit(tokens(30), 8)]
    crowd.run()
    assert crowd.output[ids[0]] == crowd.output[ids[2]] == expected


def test_eos_stops_unless_ignored(bench, tokens):
    """An end token ends with stop and is part of the output; ignore_eos goes on."""
    b = bench(blocks=16)
    third = b.output[b.serve(tokens(6), 4).id][2]
    b.worker.delivery.eos_ids = frozenset({third})
    request = replace(b.request(tokens(6), 4), sampling=Sampling(), id=50)
    b.send(m.Submit(request))
    b.submitted.add(50)
    b.run()
    assert b.done[50].reason is Finish.STOP
    assert b.done[50].truth.generated == 3
    assert b.output[50][-1] == third
    assert b.serve(tokens(6), 4).reason is Finish.LENGTH
    b.drained()


def test_cancel_reasons(bench, tokens):
    """A cancel carries how the request ends: stop for a stop string, expired for a deadline."""
    b = bench(blocks=16)
    for reason, phase in ((Finish.STOP, None), (Finish.EXPIRED, "decode"), (Finish.CANCELLED, "decode")):
        id = b.submit(tokens(6), 9)
        b.step()
        b.step()
        b.cancel(id, reason)
        assert (b.done[id].reason, b.done[id].truth.cancel_phase) == (reason, phase)
    assert b.count("cancelled_total", phase="decode") == 2
    b.drained()


def test_deadline(bench, tokens):
    """A deadline ends a queued request without a step and a running one in that step."""
    b = bench(blocks=8, max_running=1)
    running = b.submit(tokens(6), 20, deadline=int(0.1 * SECOND))
    queued = b.submit(tokens(6), 4, deadline=int(0.05 * SECOND))
    b.run()
    assert b.done[running].reason is b.done[queued].reason is Finish.EXPIRED
    assert b.done[queued].truth.cancel_phase == "queued"
    assert queued not in b.steps_of
    assert 0.1 * SECOND <= b.done[running].truth.finished < 0.12 * SECOND
    assert 0 < b.done[running].truth.generated < 20
    b.drained()


class TestBacklog:
    """What waits here is little, in order, and can be handed back."""

    def test_refuses_beyond_twice_the_bound(self, bench):
        """Two requests may always wait; beyond that a second of prefill, then it refuses."""
        b = bench(blocks=2000, max_running=1)
        ids = [b.submit(600, 1) for _ in range(4)]
        b.step()
        assert [b.refused[id].reason for id in ids[2:]] == ["backlog", "backlog"]
        assert b.worker.load.ack == 4
        b.run()
        assert b.done.keys() == set(ids[:2])
        b.drained()

    def test_cached_prompts_count_little(self, bench, tokens):
        """Only what must be computed fills the backlog."""
        b = bench(blocks=2000, max_running=1)
        b.serve(tokens(2000), 1)
        ids = [b.submit([*tokens(2000), seed], 1) for seed in range(6)]
        assert not b.refused
        assert b.worker.load.prefill_tokens == 6
        b.run()
        assert all(b.done[id].truth.hit_device == 2000 for id in ids)

    def test_recall(self, bench):
        """A waiting request is handed back; a started one goes on."""
        b = bench(blocks=64, max_running=1)
        started, waiting = b.submit(6, 4), b.submit(6, 4)
        b.step()
        for id in (started, waiting, 999):
            b.send(m.Recall(id))
        assert b.refused[waiting].reason == "recalled"
        b.run()
        assert b.done.keys() == {started}
        b.drained()

    def test_drain(self, bench):
        """Draining hands the backlog back, takes nothing new and finishes what runs."""
        b = bench(blocks=64, max_running=1)
        started, waiting = b.submit(6, 4), b.submit(6, 4)
        b.step()
        b.send(m.Drain())
        late = b.submit(6, 4)
        assert {b.refused[id].reason for id in (waiting, late)} == {"draining"}
        assert b.worker.heartbeat(b.now).state == "draining"
        b.run()
        assert b.done[started].reason is Finish.LENGTH
        b.drained()

    def test_dispatch_order(self, bench):
        """Requests are admitted in the order they came."""
        b = bench(blocks=64, max_running=1)
        ids = [b.submit(6, 2) for _ in range(4)]
        b.run()
        starts = [b.done[id].truth.first_scheduled for id in ids]
        assert starts == sorted(starts)


class TestHolds:
    """A breakpoint pauses one request at a phase, holding its blocks, while others run on."""

    def held(self, b, phase, length=20, out_max=6, client=None):
        b.send(m.Hold(1, phase, client))
        id = b.submit(length, out_max, client_id="me")
        other = b.submit(5, 3, client_id="other")
        for _ in range(30):
            if b.step() is None:
                break
        (report,) = b.told(m.Held)
        assert (report.hold_id, report.id, report.client_id, report.phase) == (1, id, "me", phase)
        assert other in b.done, "others run on"
        assert id not in b.done
        return id

    @pytest.mark.parametrize(
        ("phase", "computed", "generated"),
        [
            ("admitted", 0, 0),
            ("prefill:1", 8, 0),
            ("prefill:2", 16, 0),
            ("decode:1", 16, 0),
            ("decode:3", 21, 2),
        ],
    )
    def test_pauses_exactly_there(self, bench, phase, computed, generated):
        """Nothing is computed beyond the phase; a release lets it go on to its end."""
        b = bench(blocks=64, budget=16, chunk=8)
        id = self.held(b, phase, client="me")
        sequence = b.worker.scheduler.running[id, 0]
        assert (sequence.computed, sequence.generated) == (computed, generated)
        assert len(sequence.table) >= 5
        b.send(m.Release(1))
        b.run()
        assert b.done[id].truth.generated == 6
        b.drained()

    def test_lapses(self, bench):
        """A hold lets go by itself after ten seconds."""
        b = bench(blocks=64, chunk=8)
        id = self.held(b, "prefill:1")
        assert b.step() is None
        b.now = b.worker.next_wakeup
        assert 9 * SECOND < b.now < 11 * SECOND
        b.run()
        assert b.done[id].reason is Finish.LENGTH
        b.drained()

    def test_cancel_and_clear_of_a_held_one(self, bench):
        """A held request can be cancelled; the hold is then over."""
        b = bench(blocks=64, chunk=8)
        id = self.held(b, "prefill:1")
        b.cancel(id)
        assert b.done[id].truth.cancel_phase == "prefill"
        assert b.worker.next_wakeup is None
        b.drained()

    def test_never_reached(self, bench):
        """A hold that nobody reaches changes nothing, and can be withdrawn."""
        b = bench(blocks=64)
        b.send(m.Hold(1, "decode:50", None))
        b.send(m.Hold(2, "prefill:1", "somebody"))
        b.serve(5, 3)
        b.send(m.Release(1))
        assert b.told(m.Held) == []
        b.drained()

    def test_unknown_phase(self, bench, caplog):
        """A phase that no worker knows is reported and ignored."""
        b = bench(blocks=8)
        b.send(m.Hold(1, "decode:x", None))
        assert "decode:x" in caplog.text
        b.serve(5, 3)
        b.drained()

    def test_held_requests_are_no_victims(self, bench, eager):
        """A paused request keeps its blocks although others run out of them."""
        b = bench(blocks=8, policy="eager")
        b.send(m.Hold(1, "decode:2", "me"))
        held = b.submit(12, 4, client_id="me")
        b.step()
        grower = b.submit(12, 18)
        for _ in range(20):
            b.step()
        assert len(b.worker.scheduler.running[held, 0].table) == 4 - 1
        assert grower not in b.done, "it waits: the other is only paused"
        b.send(m.Release(1))
        b.run()
        assert b.done[held].truth.preemptions + b.done[grower].truth.preemptions <= 1
        b.drained()


class TestFailures:
    """A failed step ends its requests and publishes nothing."""

    def fail(self, b, error="boom"):
        plan = b.begin()
        b.flying = None
        b.worker.step_failed(plan, error, b.now)
        b.collect()

    def test_one_failed_step(self, bench, tokens):
        """Its requests end with error, its blocks are free and uncached, the next request is served."""
        b = bench(blocks=16)
        id = b.submit(tokens(12), 4)
        self.fail(b)
        assert (b.done[id].reason, b.done[id].error) == (Finish.ERROR, "step_failed: boom")
        assert b.told(m.KvEvents) == []
        assert b.serve(tokens(12), 4).truth.hit_device == 0
        assert b.told(m.Failed) == []
        b.drained()

    def test_three_in_a_row(self, bench):
        """Three failed steps in a row and the worker says that it cannot go on; a good one resets that."""
        b = bench(blocks=16)
        for _ in range(2):
            b.submit(5, 4)
            self.fail(b)
        b.serve(5, 1)
        for _ in range(3):
            assert b.told(m.Failed) == []
            b.submit(5, 4)
            self.fail(b)
        (failed,) = b.told(m.Failed)
        assert "boom" in failed.reason
        b.drained()

    def test_a_corrupt_row(self, bench, tokens):
        """A row whose output is no number ends that request only, and its blocks are not cached."""
        b = bench(blocks=32)
        bad, good = b.submit(tokens(8), 1), b.submit(tokens(8, seed=1), 1)
        plan = b.begin()
        b.flying = None
        result = b.runner.execute(plan)
        b.worker.commit(plan, StepResult(result.tokens, failed=(0,)), b.now)
        b.collect()
        assert (b.done[bad].reason, b.done[good].reason) == (Finish.ERROR, Finish.LENGTH)
        assert b.serve(tokens(8), 1).truth.hit_device == 0
        b.drained()


class TestControls:
    """Configuration, ballast and clears act between steps."""

    def test_configure(self, bench):
        """New limits hold from the next step on."""
        b = bench(blocks=64)
        b.send(m.Configure({"scheduler.prefill_chunk": 4, "max_step_tokens": 6}))
        b.submit(12, 1)
        assert b.step().tokens == 4
        b.send(m.Configure({"prefill_chunk": 6}))
        assert b.step().tokens == 6
        b.run()
        b.drained()

    def test_a_wrong_change_changes_nothing(self, bench, caplog):
        """Unknown controls and wrong values are named; the configuration stays."""
        b = bench(blocks=64)
        before = b.worker.config
        b.send(m.Configure({"prefil_chunk": 4, "kv_headroom": 2, "max_running": 3}))
        assert b.worker.config == before
        assert "did you mean prefill_chunk" in caplog.text
        assert "kv_headroom = 2" in caplog.text

    def test_cache_off(self, bench, tokens):
        """Switching the prefix cache off clears it and stops lookups."""
        b = bench(blocks=64)
        b.serve(tokens(12), 1)
        b.send(m.Configure({"prefix_cache": False}))
        assert b.worker.epoch == 2
        for _ in range(2):
            assert b.serve(tokens(12), 1).truth.hit_device == 0
        assert b.digests == set()
        b.drained()

    def test_ttl_and_eviction_change(self, bench, tokens):
        """A life set while running holds for releases after it."""
        b = bench(blocks=64)
        b.serve(tokens(12), 1)
        b.send(m.Configure({"ttl": 2.0, "eviction": "ttl"}))
        b.serve(tokens(12, seed=1), 1)
        b.now += 3 * SECOND
        b.step()
        assert b.serve(tokens(12), 1).truth.hit_device == 8
        assert b.serve(tokens(12, seed=1), 1).truth.hit_device == 0
        b.drained()

    def test_clear_under_a_running_request(self, bench, tokens):
        """A clear drops every digest at once; what runs goes on, and publishes nothing of the old chain."""
        b = bench(blocks=64, chunk=8)
        id = b.submit(tokens(20), 4)
        b.step()
        b.begin()
        b.send(m.Clear())
        assert b.digests == set()
        cleared = b.told(m.KvEvents)[-1]
        assert (cleared.epoch, cleared.seq, cleared.events[0].kind) == (2, 1, "cleared")
        b.end()
        b.run()
        assert b.done[id].truth.generated == 4
        assert b.digests == set()
        b.serve(tokens(20), 1)
        assert len(b.digests) == 5
        b.drained()

    def test_events_are_numbered_within_an_epoch(self, bench, tokens):
        """Sequence numbers have no gap and start at 1 in each epoch."""
        b = bench(blocks=16)
        for seed in range(4):
            b.serve(tokens(20, seed=seed), 2)
            if seed == 1:
                b.send(m.Clear())
        batches = [(batch.epoch, batch.seq) for batch in b.told(m.KvEvents)]
        for epoch in (1, 2):
            numbers = [seq for e, seq in batches if e == epoch]
            assert numbers == list(range(1, len(numbers) + 1))

    def test_ballast_preempts_and_heals(self, bench):
        """Ballast takes free blocks; who then runs out is preempted and finishes after the heal."""
        b = bench(blocks=16)
        ids = [b.submit(12, 16), b.submit(12, 16)]
        b.step()
        b.send(m.Ballast(9))
        for _ in range(12):
            b.step()
        assert b.count("preemptions_total", cause="memory") == 1
        b.send(m.Ballast(0))
        b.run()
        truths = [b.done[id].truth for id in ids]
        assert sorted(t.preemptions for t in truths) == [0, 1]
        assert all(t.generated == 16 for t in truths)
        assert max(t.recomputed for t in truths) > 0
        b.drained()

    def test_ballast_respects_promises_without_preemption(self, bench):
        """With preemption off, ballast leaves alone what running requests were promised."""
        b = bench(blocks=16, preemption="none")
        ids = [b.submit(12, 16), b.submit(12, 16)]
        b.step()
        b.send(m.Ballast(16))
        b.run()
        assert all(b.done[id].truth.generated == 16 for id in ids)
        b.send(m.Ballast(0))
        b.drained()

    @pytest.mark.parametrize("left", [9, 5, 1, 0])
    def test_preemption_switched_off_under_ballast(self, bench, left):
        """Ballast that already holds promised blocks stops who needs them, without a victim; once it is
        released everybody goes on, those too who came meanwhile."""
        b = bench(blocks=16)
        ids = [b.submit(12, 16), b.submit(12, 16)]
        b.step()
        b.send(m.Ballast(9))
        b.send(m.Configure({"preemption": "none"}))
        while b.step():
            pass
        assert not b.worker.idle
        ids.append(b.submit(12, 16))
        assert b.step() is None
        b.send(m.Ballast(left))
        for _ in range(40):
            b.step()
        b.send(m.Ballast(0))
        b.run()
        assert [b.done[id].truth.generated for id in ids] == [16, 16, 16]
        assert b.count("preemptions_total", cause="memory") == 0
        b.drained()

    def test_audit_message(self, bench):
        """An audit answers with the state and no violations."""
        b = bench(blocks=16)
        b.submit(5, 3)
        b.step()
        b.send(m.AskAudit(7))
        (report,) = b.told(m.AuditReport)
        assert report.ask_id == 7
        assert (report.audit["running"], report.audit["violations"]) == (1, [])
        assert report.audit["free"] + report.audit["referenced"] == 16

    def test_a_broken_invariant_is_counted_and_named(self, bench):
        """An audit of a corrupted worker names the rule, counts it, and does not raise."""
        b = bench(blocks=16)
        b.serve(5, 3)
        b.worker.pool.ref[3] = 2
        violations = b.worker.audit()["violations"]
        assert {text.split(":")[0] for text in violations} >= {"K1", "K3"}
        assert b.count("invariant_violations_total", rule="K3") == 1


class TestPreemption:
    def test_lowest_class_goes_first(self, bench, eager):
        """The victim is of the least urgent class, and the front of the queue is its own class's."""
        b = bench(blocks=12, policy="eager")
        urgent, batch = b.submit(12, 30, rank=0), b.submit(20, 20, rank=1)
        while not b.count("preemptions_total", cause="memory"):
            b.step()
        assert list(b.worker.scheduler.waiting) == [(batch, 0)]
        b.run()
        assert b.done[urgent].truth.preemptions == 0
        assert b.done[batch].truth.preemptions >= 1
        b.drained()

    def test_hits_of_a_resume_are_not_counted(self, bench, eager):
        """Truth and hit metrics speak of the first admission; recomputed counts what was done twice."""
        b = bench(blocks=8, policy="eager")
        ids = [b.submit(8, 20), b.submit(8, 20)]
        b.run()
        truths = [b.done[id].truth for id in ids]
        assert sum(t.preemptions for t in truths) >= 1
        for t in truths:
            assert (t.hit_device, t.computed, t.generated) == (0, 8, 20)
        assert b.count("recomputed_tokens_total") == sum(t.recomputed for t in truths) > 0
        assert b.count("prefix_hit_tokens_total") == 0
        b.drained()


def test_hello_heartbeat_and_gauges(bench, tokens):
    """The heartbeat tells state, load and metrics that are true now."""
    b = bench(blocks=16)
    assert b.worker.hello() == m.Hello(0, "w0", 1, 16, 4, 64)
    b.serve(tokens(9), 2)
    b.submit(tokens(9), 20)
    b.begin()
    beat = b.worker.heartbeat(b.now + SECOND)
    assert (beat.state, beat.step, beat.step_started) == ("ready", 3, b.now)
    load = m.Load(running=1, waiting=0, prefill_tokens=1, decode_blocks=3, free_blocks=13, ack=2)
    rates = {"prefill_rate": beat.load.prefill_rate, "decode_rate": beat.load.decode_rate}
    assert beat.load == replace(load, **rates)
    assert min(rates.values()) > 0
    assert beat.metrics["headrace_engine_step_age_seconds"] == [[[], 1.0]]
    blocks = {labels[0]: value for labels, value in beat.metrics["headrace_engine_kv_blocks"]}
    assert blocks == {"used": 3, "cached": 0, "empty": 13, "fenced": 0}
    assert b.count("prompt_tokens_total", source="device") == 8
    assert b.count("prompt_tokens_total", source="computed") == 10
    b.end()
    b.run()
    b.drained()


def test_histograms_are_fed(bench, tokens):
    """Each phase of a request and each step leaves its time."""
    b = bench(blocks=16)
    b.serve(tokens(9), 3)
    b.serve(tokens(9), 3)
    id = b.submit(tokens(9), 30)
    b.step()
    b.cancel(id)
    snapshot = b.worker.heartbeat(b.now).metrics

    def observed(name):
        return sum(sum(value[1]) for _, value in snapshot[f"headrace_engine_{name}"])

    expected = {
        "queue_seconds": 3,
        "prefill_seconds": 3,
        "decode_seconds": 3,
        "ttft_seconds": 3,
        "itl_seconds": 4,
        "e2e_seconds": 3,
        "step_seconds": 7,
        "step_tokens": 7,
        "batch_rows": 7,
        "cancel_to_free_seconds": 1,
        "block_reuse_gap_seconds": 4,
    }
    assert {name: observed(name) for name in expected} == expected


def test_needs_a_number_of_blocks():
    """A memory size must have been turned into blocks before a worker is made."""
    config = replace(EngineConfig(), memory=MemoryConfig(total=1 << 30))
    with pytest.raises(ValueError, match="kv_blocks"):
        Worker(config, 0, "w0", eos_ids=frozenset(), max_positions=100, vocabulary=100)


def test_impossible_requests_end_with_error(bench):
    """Empty prompts, unknown token ids and repeated ids are answered, never asserted."""
    b = bench(blocks=8)
    for request in (b.request([], 4), b.request([1], 0), b.request([1 << 31], 4)):
        b.send(m.Submit(request))
        b.submitted.add(request.id)
        assert b.done[request.id].reason is Finish.ERROR
    id = b.submit(4, 4)
    b.send(m.Submit(replace(b.request(4, 4), id=id, attempt=2)))
    assert b.refused.pop(id).reason == "duplicate"
    b.run()
    b.drained()


def test_missing_digests_are_computed(bench, tokens):
    """A request without its digests is served and cached all the same."""
    b = bench(blocks=8)
    b.send(m.Submit(replace(b.request(array("I", tokens(9)), 1), digests=())))
    b.submitted.add(b.next_id)
    b.run()
    assert b.serve(tokens(9), 1).truth.hit_device == 8
