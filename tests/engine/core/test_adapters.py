"""LoRA adapters in one worker: who is resident, who waits for a place, what becomes of texts (ENGINE E39)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import messages as m
from engine.request import Finish, Sampling
from engine.runner.base import AdapterChange


def know(b, *names):
    """Register them, and let the worker load what there is room for."""
    for name in names:
        b.send(m.LoadAdapter(name, f"/{name}"))
    b.step()


def submit(b, tokens, out_max=4, adapter=None):
    return b.submit(tokens, out_max, adapter=adapter, root=b.root(adapter=adapter))


def states(b):
    """What the worker has said of adapters, in order, since the last call."""
    said = [(s.digest, s.loaded, s.error) for s in b.told(m.AdapterState)]
    measured = [s.seconds for s in b.told(m.AdapterState) if s.seconds is not None]
    assert all(seconds > 0 for seconds in measured)
    b.said = [message for message in b.said if not isinstance(message, m.AdapterState)]
    return said


def waiting(b, reason):
    metrics = b.worker.heartbeat(b.now).metrics["headrace_engine_requests_waiting"]
    return sum(value for (_, why), value in metrics if why == reason)


def changes(plan):
    return [(change.digest, change.folder) for change in plan.adapters]


def test_registered_ones_are_loaded_while_there_is_room(bench):
    """Before any request, by a step of their own; the others are known and wait to be asked for."""
    b = bench(blocks=16, max_adapters=2)
    for name in "xyz":
        b.send(m.LoadAdapter(name, f"/{name}"))
    plan = b.step()
    assert (plan.rows, changes(plan)) == ((), [("x", "/x"), ("y", "/y")])
    assert b.begin() is None
    assert states(b) == [("z", False, None), ("x", True, None), ("y", True, None)]
    b.send(m.LoadAdapter("x", "/x"))
    assert states(b) == [("x", True, None)]
    b.drained()


def test_texts_of_a_mixed_batch_are_their_own(bench, tokens):
    """Base and adapters in one step, the rows of one adapter next to each other; nothing is shared by those
    who differ in it, everything by those who do not."""
    b = bench(blocks=128, budget=400)
    know(b, "x", "y")
    ids = [submit(b, tokens(20), 6, adapter) for adapter in (None, "x", "y", None, "x")]
    plan = b.begin()
    assert [row.adapter for row in plan.rows] == [None, None, "x", "x", "y"]
    b.end()
    b.run()
    texts = {request: tuple(b.output[request]) for request in ids}
    assert texts[ids[0]] == texts[ids[3]] != texts[ids[1]] == texts[ids[4]] != texts[ids[2]] != texts[ids[0]]
    b.taught()
    hits = [
        b.done[submit_and_run(b, tokens(20), adapter)].truth.hit_device for adapter in (None, "x", "y", "x")
    ]
    assert hits == [16, 16, 16, 16]
    b.taught()
    b.drained()


def submit_and_run(b, tokens, adapter):
    request = submit(b, tokens, 6, adapter)
    b.run()
    return request


def test_the_least_recently_used_idle_one_makes_place(bench, tokens):
    """A load on demand drops whom nobody runs with, longest unused first, in the very step of its request."""
    b = bench(blocks=64, max_adapters=2, budget=100)
    know(b, "x", "y", "z")
    long_one = submit(b, tokens(4), 12, "x")
    b.step()
    submit_and_run_until(b, submit(b, tokens(4), 1, "y"))
    states(b)
    request = submit(b, tokens(8), 2, "z")
    plan = b.begin()  # x was loaded first, but runs
    assert changes(plan) == [("y", None), ("z", "/z")]
    assert request in {row.id for row in plan.rows}
    b.end()
    assert states(b) == [("y", False, None), ("z", True, None)]
    b.run()
    assert b.done[long_one].reason is Finish.LENGTH
    submit(b, tokens(4), 1, "y")  # z ended before x did
    assert changes(b.begin()) == [("z", None), ("y", "/y")]
    b.end()
    b.taught()
    b.drained()


def submit_and_run_until(b, request):
    while request not in b.done:
        b.step()


def test_who_finds_every_place_taken_waits_and_is_counted(bench, tokens):
    """Only it counts as waiting for an adapter, and only as long as it does."""
    b = bench(blocks=64, max_adapters=1, budget=100)
    know(b, "x", "y")
    first = submit(b, tokens(4), 5, "x")
    b.step()
    second = submit(b, tokens(4), 2, "y")
    plan = b.step()
    assert {row.id for row in plan.rows} == {first}
    assert (waiting(b, "adapter"), waiting(b, "capacity")) == (1, 0)
    submit_and_run_until(b, first)
    assert b.done.keys() == {first}
    assert changes(b.begin()) == [("x", None), ("y", "/y")]
    assert waiting(b, "adapter") == 0
    b.end()
    b.run()
    assert b.done[second].reason is Finish.LENGTH
    b.taught()
    b.drained()


def test_nobody_waits_for_ever_for_a_place(bench, tokens):
    """However many come for the one that has it: after twice the aging none of its rank passes any more
    (E25), and the place comes free."""
    b = bench(blocks=400, max_adapters=1)
    know(b, "x", "y")
    submit(b, tokens(4), 8, "x")
    b.step()
    waiting_one = submit(b, tokens(4), 2, "y")
    came, began = 0, b.now
    while waiting_one not in b.done:
        if len(b.worker.scheduler.running) < 3 and len(b.worker.scheduler.waiting) < 4:
            submit(b, tokens(4), 8, "x")
            came += 1
        b.step()
        assert b.now - began < 2 * b.config.queue.aging * 1e9 + 2e9, "it still waits"
    assert came > 100
    b.run()
    b.taught()
    b.drained()


def test_one_that_cannot_be_loaded_ends_its_requests_only(bench, tokens):
    """With the reason, which the gateway hears first; others of the step go on; the next one tries again."""
    b = bench(blocks=64)
    b.runner.adapter_digest = lambda folder: folder.removeprefix("/")
    b.send(m.LoadAdapter("x", "/gone"))
    b.send(m.LoadAdapter("y", "/y"))
    lost, base, other = (submit(b, tokens(6), 3, adapter) for adapter in ("x", None, "y"))
    b.run()
    assert b.done[lost].reason is Finish.ERROR
    assert b.done[lost].error == "adapter x: /gone: its content has changed since it was registered"
    assert b.done[base].reason is b.done[other].reason is Finish.LENGTH
    kinds = [type(s).__name__ for s in b.said if isinstance(s, m.AdapterState | m.Done)]
    assert kinds.index("AdapterState") < kinds.index("Done")
    assert ("x", False, "/gone: its content has changed since it was registered") in states(b)
    b.send(m.LoadAdapter("x", "/x"))  # put right
    again = submit(b, tokens(6), 3, "x")
    b.run()
    assert b.done[again].reason is Finish.LENGTH
    assert b.done[again].truth.hit_device == 0, "what a failed row computed is in the cache"
    b.taught()
    b.drained()


def test_unload_lets_those_here_finish(bench, tokens):
    """Dropped by the first step after the last request with it; who comes then is refused with the reason."""
    b = bench(blocks=64)
    know(b, "x")
    running, queued = submit(b, tokens(4), 3, "x"), submit(b, tokens(8), 3, "x")
    b.step()
    b.send(m.UnloadAdapter("x"))
    states(b)
    submit_and_run_until(b, running)
    submit_and_run_until(b, queued)
    assert b.done[running].reason is b.done[queued].reason is Finish.LENGTH
    assert changes(b.step()) == [("x", None)]
    assert states(b) == [("x", False, None)]
    late = b.serve(tokens(4), adapter="x")
    assert (late.reason, late.error) == (Finish.ERROR, "adapter x is not known to this worker")
    b.send(m.UnloadAdapter("x"))
    assert states(b) == [("x", False, None)]
    b.taught()
    b.drained()


def test_loading_again_takes_an_unload_back(bench, tokens):
    """Content that is registered anew while it waits to be dropped stays, without a load."""
    b = bench(blocks=64)
    know(b, "x")
    submit(b, tokens(4), 4, "x")
    b.step()
    b.send(m.UnloadAdapter("x"))
    b.send(m.LoadAdapter("x", "/elsewhere"))
    b.run()
    assert b.step() is None
    assert b.serve(tokens(4), adapter="x").reason is Finish.LENGTH
    b.drained()


def test_choices_share_an_adapter(bench, tokens):
    """Every choice of a request runs with what it names, and keeps its place until the last one ends."""
    b = bench(blocks=64, max_adapters=1)
    know(b, "x", "y")
    drawn = Sampling(1.0, seed=3, ignore_eos=True)
    several = b.submit(tokens(9), 4, adapter="x", root=b.root(adapter="x"), n=3, sampling=drawn)
    b.step()
    other = submit(b, tokens(9), 2, "y")
    b.run()
    assert len({tuple(b.choices[several, choice]) for choice in range(3)}) == 3
    assert b.done[several].truth.finished <= b.done[other].truth.first_scheduled
    b.taught()
    b.drained()


@pytest.mark.parametrize("executed", [True, False])
def test_changes_of_a_failed_step_are_made_again(bench, tokens, executed):
    """Whether or not they were made before it raised."""
    b = bench(blocks=64, max_adapters=1)
    know(b, "x", "y")
    victim = submit(b, tokens(4), 3, "y")
    b.begin()
    b.fail(executed=executed)
    assert b.done[victim].reason is Finish.ERROR
    plan = b.begin()
    assert (plan.rows, changes(plan)) == ((), [("x", None), ("y", "/y")])
    b.end()
    assert b.serve(tokens(4), adapter="y").reason is Finish.LENGTH
    b.taught()
    b.drained()


def test_a_preempted_request_finds_its_adapter_again(bench, tokens):
    """While it waits its place may go to another; it is loaded again with it."""
    b = bench(blocks=12, max_adapters=1, budget=100)
    know(b, "x", "y")
    request = submit(b, tokens(9), 12, "x")
    for _ in range(3):
        b.step()
    b.send(m.Ballast(12))
    other = None
    for _ in range(40):
        if b.worker.scheduler.waiting and other is None:
            b.send(m.Ballast(0))
            other = submit(b, tokens(4), 2, "y")
        b.step()
    b.send(m.Ballast(0))
    b.run()
    assert b.done[request].reason is Finish.LENGTH
    b.taught()
    b.drained()


def test_the_runner_computes_nobody_with_another_ones_weights(bench, tokens):
    """A plan that names an adapter which is not resident fails that row alone."""
    b = bench(blocks=16)
    know(b, "x")
    submit(b, tokens(4), 2, "x")
    submit(b, tokens(4), 2, None)
    plan = b.begin()
    sabotaged = replace(plan, adapters=(AdapterChange("x"),))
    result = b.runner.execute(sabotaged)
    assert result.failed == (1,)
    assert result.errors == {1: "adapter x: not resident"}
    b.end()
