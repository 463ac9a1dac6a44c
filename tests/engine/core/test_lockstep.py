"""Those who decode in lockstep are served exactly as if each were on its own, and leave without a trace."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

import pytest

from engine import messages as m
from engine.request import Finish, Logprob
from engine.sched.lockstep import Lockstep
from tests.engine.core.chaos import Life
from tests.engine.core.test_choices import HOT

LIVES, PARTS = 400, 4


def lived(bench, seed):
    """All that anybody outside can tell of one life, and the steps that its members took together."""
    life = Life(bench, random.Random(seed))
    life.run(30)
    b = life.bench
    ends = {id: (done.reason, done.error, asdict(done.truth)) for id, done in b.done.items()}
    steps = b.worker.scheduler.lockstep.steps
    return (b.choices, ends, b.refused, rounded(b.worker.meter.snapshot()), b.now), steps


def rounded(value):
    """Sums of times may differ in their last digit: they are added up in another order."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else _round(value)


def _round(value):
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.parametrize("part", range(PARTS))
def test_the_same_life_with_and_without(bench, part, monkeypatch):
    """Whatever happens: the same texts, ends, truths and metrics as with everybody on their own."""
    together = 0
    for seed in range(part, LIVES, PARTS):
        known, steps = lived(bench, seed)
        together += steps
        with monkeypatch.context() as patch:
            patch.setattr(Lockstep, "takes", lambda self, sequence: False)
            alone, none = lived(bench, seed)
        assert known == alone, f"seed {seed}"
        assert none == 0
    assert together > LIVES / PARTS, "hardly anybody was ever in lockstep: this compares nothing"


def start(bench, tokens, *out_max, **more):
    """Requests that all decode, in lockstep from the next step on."""
    b = bench(blocks=64, **more)
    ids = [b.submit(tokens(6, seed=place), most) for place, most in enumerate(out_max)]
    b.step()
    b.step()
    assert len(b.worker.scheduler.lockstep) == len(ids)
    return b, ids


def empty(lockstep):
    """Nothing is kept of those who were there."""
    kept = (lockstep._ends, lockstep._stops, *lockstep._phases, *lockstep._columns)
    return not any(kept) and not +lockstep.classes


def test_one_message_for_all_of_them(bench, tokens):
    """A step of three decoders says one thing, with their tokens in the order of admission."""
    b, ids = start(bench, tokens, 9, 9, 9)
    plan = b.begin()
    b.worker.commit(plan, b.runner.execute(plan), b.now + 1)
    said = [message for message in b.worker.take_outbox() if isinstance(message, m.StepTokens)]
    assert [each.ids for each in said] == [tuple(ids)]
    assert [one.ids for one in said[0].apart()] == [(token,) for token in said[0].tokens]


def test_a_cancel_in_flight_takes_one_out(bench, tokens):
    """The others get their tokens, each its own; the row of the one that left is an output too late."""
    b, ids = start(bench, tokens, 12, 12, 12)
    b.begin()
    b.send(m.Cancel(ids[1]))
    b.end()
    assert b.count("late_outputs_total") == 1
    assert b.done[ids[1]].truth.steps_after_cancel == 1
    b.run()
    assert [b.done[id].reason for id in ids] == [Finish.LENGTH, Finish.CANCELLED, Finish.LENGTH]
    b.taught()
    assert b.done[ids[0]].truth.generated == 12
    assert empty(b.worker.scheduler.lockstep)
    b.drained()


def test_a_row_that_fails_takes_its_own_out_only(bench, tokens):
    """Its request ends with the error, and its token goes to nobody."""
    b, ids = start(bench, tokens, 12, 12, 12)
    b.begin()
    b.end(failed=(0,))
    assert b.done[ids[0]].reason is Finish.ERROR
    b.run()
    assert [b.done[id].truth.generated for id in ids] == [2, 12, 12]
    b.taught()


def test_logprobs_stay_with_their_tokens(bench, tokens):
    """Also when somebody before them has left in flight."""
    b = bench(blocks=64)
    wants = replace(HOT, logprobs=1)
    ids = [b.submit(tokens(6, seed=at), 9, sampling=wants if at else HOT) for at in range(3)]
    b.step()
    b.step()
    b.begin()
    b.send(m.Cancel(ids[0]))
    b.end()
    b.run()
    for said in b.told(m.TokensOut):
        expected = [Logprob(token, 0.0, (token,), (0.0,)) for token in said.ids if said.id != ids[0]]
        assert list(said.logprobs) == expected


def test_a_stop_id_ends_one_member(bench, tokens):
    """And not another one, for whom the same token is one like any other."""
    b = bench(blocks=64)
    plain = b.submit(tokens(6), 12)
    b.run()
    stop = b.output[plain][4]
    where = b.output[plain].index(stop)
    free = b.submit(tokens(6), 12)
    ends = b.submit(tokens(6), 12, sampling=replace(b.requests[plain].sampling, stop_ids=(stop,)))
    b.run()
    assert (b.done[ends].reason, len(b.output[ends])) == (Finish.STOP, where + 1)
    assert b.output[free] == b.output[plain]
    assert empty(b.worker.scheduler.lockstep)


def test_nobody_is_in_lockstep_while_a_hold_waits(bench, tokens):
    """Each is looked at before its token, until the hold has caught one; then the others go on together."""
    b, ids = start(bench, tokens, 12, 12, 12)
    b.send(m.Hold(1, "decode:4"))
    b.step()
    assert len(b.worker.scheduler.lockstep) == 0
    for _ in range(4):
        b.step()
    (held,) = (id for id, job in b.worker.roster.active.items() if job.held is not None)
    assert len(b.output[held]) == 3
    b.send(m.Release(1))
    b.run()
    assert all(b.done[id].truth.generated == 12 for id in ids)
    b.taught()


def test_nothing_is_kept_of_who_ends_early(bench, tokens):
    """However long it might have gone on."""
    b, ids = start(bench, tokens, 60, 60)
    for id in ids:
        b.send(m.Cancel(id))
    b.run()
    assert empty(b.worker.scheduler.lockstep)
