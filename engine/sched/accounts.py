"""What truly happened, written into each request's truth (JOINTS 4) and counted on the meter (ENGINE 14)."""

from __future__ import annotations

from itertools import takewhile

from engine.config import EngineConfig
from engine.kv.prefix_cache import Match, PrefixCache
from engine.request import Finish, MissReason, Request, WorkerTruth
from engine.runner.base import Row, StepPlan
from engine.sched.aside import Source
from engine.sched.fairness import tenant_label
from engine.sched.job import Job
from engine.sched.lockstep import Lockstep
from engine.sched.rates import OutputLengths
from engine.sched.sequence import Sequence
from engine.telemetry import Meter

_NS = 1e9


class Accounts:
    """The bookkeeper of one worker. Every method is called at the moment it names.

    A request has one truth, to which its choices add up: prompt tokens and their misses count once, output
    tokens and those computed again for all, a step with rows of several of them is one step (a decode step
    if any of the rows decodes), and blocks that they share are held once.
    """

    def __init__(self, meter: Meter, cache: PrefixCache, config: EngineConfig) -> None:
        self.meter = meter
        self.cache = cache
        self.configure(config)
        self._untold = 0
        """Tokens generated in this step, which the meter does not know of yet."""
        self._gaps: dict[tuple[int, str], int] = {}
        """Of these those with one before: (time of that one, class) -> how many."""
        self.lengths = OutputLengths()
        """Of the answers that came to their own end here."""

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from now on."""
        self._queue, self._tenants = config.queue, config.tenants

    def taken(self, job: Job) -> None:
        self.meter.inc("headrace_engine_requests_total", class_=job.request.class_)

    def refused(self, request: Request, reason: str) -> None:
        if reason in ("backlog", "draining"):
            self.meter.inc("headrace_engine_rejections_total", reason=reason, class_=request.class_)

    def looked_up(self, sequence: Sequence, match: Match, path: tuple[Source, ...]) -> None:
        """It is about to be admitted: what is hit, with ``path`` if that can be loaded, and a reason for each
        prompt token that is not (E18). Nothing is counted before it has come true."""
        if sequence.counted:
            return
        truth, request, size = sequence.truth, sequence.request, sequence.block_size
        tiers = [source.tier for source in path]
        hit, resident = len(match.blocks) + len(path), match.resident
        if path:
            behind = takewhile(self.cache.holds, sequence.digests[hit:])
            resident = hit + sum(1 for _ in behind)
        sequence.job.first_hit = hit
        truth.hit_device = (len(match.blocks) + tiers.count("device")) * size
        truth.hit_host, truth.hit_disk = tiers.count("host") * size, tiers.count("disk") * size
        seen = Match((*match.blocks, *(source.block for source in path)), resident)
        truth.misses = self.cache.explain(request.root, sequence.digests, request.tokens, seen)
        never = any(miss.reason is MissReason.NEVER_COMPUTED for miss in truth.misses)
        truth.misses_complete = self.cache.history.complete or not never

    def admitted(self, sequence: Sequence, asked: bool) -> None:
        """The first admission is complete: count what was hit and what was not.

        ``asked`` is False while the prefix cache is off: then nobody looked, and no query is counted.
        """
        if sequence.counted:
            return
        sequence.counted = True
        truth, inc = sequence.truth, self.meter.inc
        if asked:
            inc("headrace_engine_prefix_query_tokens_total", sequence.prompt)
            inc("headrace_engine_prefix_hit_tokens_total", truth.hit)
        for source, tokens in (*truth.hits.items(), ("computed", sequence.prompt - truth.hit)):
            inc("headrace_engine_prompt_tokens_total", tokens, source=source)
        for miss in truth.misses:
            inc("headrace_engine_miss_tokens_total", miss.tokens, reason=miss.reason)

    def scheduled(self, sequence: Sequence, now: int) -> None:
        """The first step that computes something for it begins."""
        sequence.truth.first_scheduled = now
        wait = (now - sequence.job.received) / _NS
        self.meter.observe("headrace_engine_queue_seconds", wait, class_=sequence.request.class_)

    def stepped(self, plan: StepPlan, started: int, now: int) -> None:
        kind = "mixed" if plan.decodes else "prefill"
        if plan.decodes == len(plan.rows):
            kind = "decode" if plan.decodes else "transfer"
        self.meter.observe("headrace_engine_step_seconds", (now - started) / _NS, kind=kind)
        self.meter.observe("headrace_engine_step_tokens", plan.tokens)
        self.meter.observe("headrace_engine_batch_rows", len(plan.rows))

    def computed(self, sequence: Sequence, row: Row, decodes: bool, plan: StepPlan) -> None:
        """A row of a committed step: its K/V is there now."""
        truth, job = sequence.truth, sequence.job
        start, most = row.start, sequence.most_computed
        sequence.computed = end = start + len(row.tokens)
        if end > most:
            sequence.most_computed = end
        if most < sequence.prompt and end > most:
            truth.computed += min(end, sequence.prompt) - most
        if most > start:
            again = min(end, most) - start
            truth.recomputed += again
            self.meter.inc("headrace_engine_recomputed_tokens_total", again)
        if job.members or job.last_step == plan.step:
            return
        job.last_step = plan.step
        job.rows += len(plan.rows)
        job.step_tokens += plan.tokens
        if decodes:
            truth.steps_decode += 1
        else:
            truth.steps_prefill += 1

    def generated(self, sequence: Sequence, now: int) -> None:
        """A token was drawn and appended."""
        truth = sequence.truth
        truth.generated += 1
        self._untold += 1
        if sequence.last_token is not None:
            key = sequence.last_token, sequence.request.class_
            self._gaps[key] = self._gaps.get(key, 0) + 1
        elif truth.prefill_done is None:
            self._prefilled(sequence.job, now)
        sequence.last_token = now

    def generated_together(self, members: Lockstep) -> None:
        """A token was drawn for each member and appended."""
        self._untold += len(members)
        for class_, tokens in members.classes.items():
            if tokens:
                key = members.told_at, class_
                self._gaps[key] = self._gaps.get(key, 0) + tokens

    def told(self, now: int) -> None:
        """All tokens of a step were appended. Most of them follow on the same earlier step."""
        self.meter.inc("headrace_engine_generated_tokens_total", self._untold)
        for (before, class_), tokens in self._gaps.items():
            gap = (now - before) / _NS
            self.meter.observe("headrace_engine_itl_seconds", gap, tokens, class_=class_)
        self._untold = 0
        self._gaps.clear()

    def _prefilled(self, job: Job, now: int) -> None:
        """The first token of all its choices."""
        truth, class_ = job.truth, job.request.class_
        truth.prefill_done = now
        assert truth.first_scheduled is not None, "a token comes out of a scheduled step"
        took = (now - truth.first_scheduled) / _NS
        self.meter.observe("headrace_engine_prefill_seconds", took, class_=class_)
        self.meter.observe("headrace_engine_ttft_seconds", _since_arrival(job, now), class_=class_)

    def put_back(self, sequence: Sequence) -> None:
        """What was looked up for its first admission has not come true."""
        if not sequence.counted:
            truth, sequence.job.first_hit = sequence.truth, 0
            sequence.most_computed = 0  # those hits may be gone at the next try, and are computed first then
            truth.hit_device = truth.hit_host = truth.hit_disk = 0
            truth.misses = []

    def preempted(self, sequence: Sequence, cause: str) -> None:
        """It lost its blocks to somebody else and is to be computed again."""
        sequence.truth.preemptions += 1
        self.meter.inc("headrace_engine_preemptions_total", cause=cause)

    def late(self, tokens: int) -> None:
        """A step drew so many for a request or choice that had already ended."""
        if tokens:
            self.meter.inc("headrace_engine_late_outputs_total", tokens)

    def choice_ended(self, sequence: Sequence) -> None:
        """Called while it still holds its blocks."""
        first = sequence.job.first_hit
        kept = enumerate(sequence.table[first : sequence.published], first)
        sequence.job.created |= {
            sequence.digest(index) for index, block in kept if self.cache.is_first_copy(block)
        }

    def ended(self, job: Job, reason: Finish, now: int) -> None:
        """Fill in the truth; called while its last choices still hold their blocks."""
        truth, class_ = job.truth, job.request.class_
        truth.finished = now
        if reason in (Finish.STOP, Finish.LENGTH):
            for choice in job.choices:
                self.lengths.ended(class_, choice.generated)
        if reason in (Finish.CANCELLED, Finish.EXPIRED):
            truth.cancel_phase = job.phase
            self.meter.inc("headrace_engine_cancelled_total", phase=job.phase)
        steps = truth.steps_prefill + truth.steps_decode
        if steps:
            truth.rows_mean = job.rows / steps
            truth.step_tokens_mean = job.step_tokens / steps
        for choice in job.choices:
            self.choice_ended(choice)
        created = sum(self.cache.holds(digest) for digest in job.created)
        truth.created_cache_tokens = created * self.cache.block_size
        self.meter.inc("headrace_engine_finished_total", reason=reason, class_=class_)
        had = self._queue.input_weight * truth.computed + self._queue.output_weight * truth.generated
        tenant = tenant_label(self._tenants, job.request.tenant)
        self.meter.inc("headrace_engine_service_total", had, tenant=tenant)
        if truth.prefill_done is not None:
            took = (now - truth.prefill_done) / _NS
            self.meter.observe("headrace_engine_decode_seconds", took, class_=class_)
        self.meter.observe(
            "headrace_engine_e2e_seconds", _since_arrival(job, now), class_=class_, reason=reason
        )

    def freed(self, truth: WorkerTruth, steps: int, now: int) -> None:
        """The blocks of a flagged request are free, ``steps`` applied steps after its flag."""
        assert truth.cancel_flagged is not None, "flagged before it is freed"
        truth.reclaimed, truth.steps_to_reclaim = now, steps
        took = (now - truth.cancel_flagged) / _NS
        self.meter.observe("headrace_engine_cancel_to_free_seconds", took)


def _since_arrival(job: Job, now: int) -> float:
    """Seconds since the gateway received the request, or since it came here if that is unknown."""
    return (now - (job.request.arrived or job.received)) / _NS
