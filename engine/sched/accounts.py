"""What truly happened, written into each request's truth (JOINTS 4) and counted on the meter (ENGINE 14)."""

from __future__ import annotations

from engine.kv.prefix_cache import Match, PrefixCache
from engine.request import Finish, MissReason, Request, WorkerTruth
from engine.runner.base import Row, StepPlan
from engine.sched.sequence import Sequence
from engine.telemetry import Meter

_NS = 1e9


class Accounts:
    """The bookkeeper of one worker. Every method is called at the moment it names."""

    def __init__(self, meter: Meter, cache: PrefixCache) -> None:
        self.meter = meter
        self.cache = cache

    def taken(self, sequence: Sequence) -> None:
        self.meter.inc("headrace_engine_requests_total", class_=sequence.request.class_)

    def refused(self, request: Request, reason: str) -> None:
        if reason in ("backlog", "draining"):
            self.meter.inc("headrace_engine_rejections_total", reason=reason, class_=request.class_)

    def admitted(self, sequence: Sequence, match: Match, asked: bool) -> None:
        """The first admission: what was hit, and a reason for each prompt token that was not (E18).

        ``asked`` is False while the prefix cache is off: then nobody looked, and no query is counted.
        """
        truth, request, inc = sequence.truth, sequence.request, self.meter.inc
        sequence.first_hit = len(match.blocks)
        truth.hit_device = len(match.blocks) * sequence.block_size
        truth.misses = self.cache.explain(request.root, sequence.digests, request.tokens, match)
        never = any(miss.reason is MissReason.NEVER_COMPUTED for miss in truth.misses)
        truth.misses_complete = self.cache.history.complete or not never
        if asked:
            inc("headrace_engine_prefix_query_tokens_total", sequence.prompt)
            inc("headrace_engine_prefix_hit_tokens_total", truth.hit_device)
        inc("headrace_engine_prompt_tokens_total", truth.hit_device, source="device")
        inc("headrace_engine_prompt_tokens_total", sequence.prompt - truth.hit_device, source="computed")
        for miss in truth.misses:
            inc("headrace_engine_miss_tokens_total", miss.tokens, reason=miss.reason)

    def scheduled(self, sequence: Sequence, now: int) -> None:
        """A step that computes something for it begins."""
        if sequence.truth.first_scheduled is None:
            sequence.truth.first_scheduled = now
            wait = (now - sequence.received) / _NS
            self.meter.observe("headrace_engine_queue_seconds", wait, class_=sequence.request.class_)

    def stepped(self, plan: StepPlan, started: int, now: int) -> None:
        decodes = sum(row.is_decode for row in plan.rows)
        kind = "decode" if decodes == len(plan.rows) else "mixed" if decodes else "prefill"
        self.meter.observe("headrace_engine_step_seconds", (now - started) / _NS, kind=kind)
        self.meter.observe("headrace_engine_step_tokens", plan.tokens)
        self.meter.observe("headrace_engine_batch_rows", len(plan.rows))

    def computed(self, sequence: Sequence, row: Row, plan: StepPlan) -> None:
        """A row of a committed step: K/V of its tokens is there now."""
        truth = sequence.truth
        end = row.start + len(row.tokens)
        again = max(0, min(end, sequence.most_computed) - row.start)
        fresh = min(end, sequence.prompt) - max(row.start, sequence.most_computed)
        truth.computed += max(0, fresh)
        sequence.computed = end
        sequence.most_computed = max(sequence.most_computed, end)
        truth.recomputed += again
        self.meter.inc("headrace_engine_recomputed_tokens_total", again)
        if row.is_decode:
            truth.steps_decode += 1
        else:
            truth.steps_prefill += 1
        sequence.rows += len(plan.rows)
        sequence.step_tokens += plan.tokens

    def generated(self, sequence: Sequence, now: int) -> None:
        """A token was drawn and appended."""
        truth, class_ = sequence.truth, sequence.request.class_
        truth.generated += 1
        self.meter.inc("headrace_engine_generated_tokens_total")
        if truth.prefill_done is None:
            truth.prefill_done = now
            assert truth.first_scheduled is not None, "a token comes out of a scheduled step"
            took = (now - truth.first_scheduled) / _NS
            self.meter.observe("headrace_engine_prefill_seconds", took, class_=class_)
            self.meter.observe("headrace_engine_ttft_seconds", _since_arrival(sequence, now), class_=class_)
        elif sequence.last_token is not None:
            gap = (now - sequence.last_token) / _NS
            self.meter.observe("headrace_engine_itl_seconds", gap, class_=class_)
        sequence.last_token = now

    def preempted(self, sequence: Sequence) -> None:
        """It lost its blocks to somebody else and is to be computed again."""
        sequence.truth.preemptions += 1
        self.meter.inc("headrace_engine_preemptions_total", cause="memory")

    def late(self, token: int | None) -> None:
        """A step computed something for a request that had already ended."""
        if token is not None:
            self.meter.inc("headrace_engine_late_outputs_total")

    def ended(self, sequence: Sequence, reason: Finish, now: int) -> None:
        """Fill in the truth; called while the sequence still holds its blocks."""
        truth, class_ = sequence.truth, sequence.request.class_
        truth.finished = now
        if reason in (Finish.CANCELLED, Finish.EXPIRED):
            truth.cancel_phase = sequence.phase
            self.meter.inc("headrace_engine_cancelled_total", phase=sequence.phase)
        steps = truth.steps_prefill + truth.steps_decode
        if steps:
            truth.rows_mean = sequence.rows / steps
            truth.step_tokens_mean = sequence.step_tokens / steps
        kept = sequence.table[sequence.first_hit : sequence.published]
        created = sum(self.cache.is_first_copy(block) for block in kept)
        truth.created_cache_tokens = created * sequence.block_size
        self.meter.inc("headrace_engine_finished_total", reason=reason, class_=class_)
        if truth.prefill_done is not None:
            took = (now - truth.prefill_done) / _NS
            self.meter.observe("headrace_engine_decode_seconds", took, class_=class_)
        self.meter.observe(
            "headrace_engine_e2e_seconds", _since_arrival(sequence, now), class_=class_, reason=reason
        )

    def freed(self, truth: WorkerTruth, steps: int, now: int) -> None:
        """The blocks of a flagged request are free, ``steps`` applied steps after its flag."""
        assert truth.cancel_flagged is not None, "flagged before it is freed"
        truth.reclaimed, truth.steps_to_reclaim = now, steps
        took = (now - truth.cancel_flagged) / _NS
        self.meter.observe("headrace_engine_cancel_to_free_seconds", took)


def _since_arrival(sequence: Sequence, now: int) -> float:
    """Seconds since the gateway received the request, or since it came here if that is unknown."""
    return (now - (sequence.request.arrived or sequence.received)) / _NS
