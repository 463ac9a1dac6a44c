"""Requests with several choices at the gateway: what is passed on, counted, stopped and retried."""

from __future__ import annotations

import asyncio

from engine import messages as m
from engine.fleet.backend import Ended, Generated, StreamEvent
from engine.request import Finish, Logprob, Sampling
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import VirtualFleet, Yard, ask, config

HOT = Sampling(temperature=1.0, seed=3, ignore_eos=True)


def say(yard: Yard, id: int, choice: int, *ids: int, finish: Finish | None = None, worker: int = 0) -> None:
    yard.say(worker, m.TokensOut(id, 1, ids, choice, finish=finish))


def three(yard: Yard) -> int:
    """A request with three choices, dispatched to worker 0, of each of which one token is heard."""
    id = yard.submit(ask(n=3))
    assert yard.where(id) == [0]
    for choice in range(3):
        say(yard, id, choice, 10 + choice)
    return id


def generated(yard: Yard, id: int) -> list[Generated]:
    return [event for event in yard.heard.get(id, []) if isinstance(event, Generated)]


def test_what_a_choice_says_is_passed_on_whole() -> None:
    """Number, log probabilities and the end of one choice come through; the request ends once."""
    yard = Yard(config(workers=1))
    id = yard.submit(ask(n=2))
    probability = Logprob(5, -0.5, (5, 6), (-0.5, -1.0))
    yard.say(0, m.TokensOut(id, 1, (5,), 1, (probability,)))
    say(yard, id, 1, finish=Finish.STOP)
    say(yard, id, 0, 8)
    yard.done(0, id, generated=2)
    assert generated(yard, id) == [
        Generated((5,), 1, (probability,)),
        Generated((), 1, finish=Finish.STOP),
        Generated((8,), 0),
    ]
    assert yard.ended(id).generated == 2


def test_the_request_carries_its_choices() -> None:
    """The worker is asked for as many as the client asked for."""
    yard = Yard(config(workers=1))
    yard.submit(ask(n=3))
    assert [request.n for request in yard.requests(0)] == [3]


def test_lengths_are_learned_per_choice() -> None:
    """Three choices of ten tokens are outputs of ten, not of thirty."""
    yard = Yard(config(workers=1))
    for _ in range(20):
        id = yard.submit(ask(n=3))
        yard.token(yard.where(id)[0], id)
        yard.done(yard.where(id)[0], id, generated=30)
    assert yard.gateway.dispatcher.outputs.expected("default", 1000) == 10


def test_stopping_one_choice() -> None:
    """Its worker ends it alone; what it still says is dropped, the others go on."""
    yard = Yard(config(workers=1))
    id = three(yard)
    for _ in range(2):
        yard.gateway.cancel(id, yard.now, Finish.STOP, 1)
    yard.collect()
    assert [s for s in yard.sent[0] if isinstance(s, m.Cancel)] == [m.Cancel(id, Finish.STOP, 1)]
    say(yard, id, 1, 20)
    say(yard, id, 1, finish=Finish.LENGTH)
    say(yard, id, 2, 21)
    assert [event.ids for event in generated(yard, id)] == [(10,), (11,), (12,), (21,)]
    yard.done(0, id, generated=5)
    assert yard.ended(id).finish is Finish.LENGTH
    assert yard.ended(id).generated == 5


def test_stopping_the_last_choice_ends_the_request() -> None:
    """Whatever its worker does then, even if it dies of it, the request ended with stop."""
    yard = Yard(config(workers=1))
    id = three(yard)
    say(yard, id, 0, finish=Finish.LENGTH)
    yard.gateway.cancel(id, yard.now, Finish.STOP, 1)
    yard.gateway.cancel(id, yard.now, Finish.STOP, 2)
    yard.collect()
    assert yard.sent[0][-1] == m.Cancel(id, Finish.STOP)
    yard.lose(0)
    assert yard.ended(id).finish is Finish.STOP


def test_retry_before_the_first_token_of_any_choice() -> None:
    """A lost worker costs nothing while no choice has spoken; after that it is an error."""
    yard = Yard()
    silent, speaking = yard.submit(ask(n=3)), yard.submit(ask(n=3, seed=1))
    homes = {id: yard.where(id)[0] for id in (silent, speaking)}
    yard.say(homes[speaking], m.TokensOut(speaking, 1, (5,), 2))
    for worker in {*homes.values()}:
        yard.lose(worker)
        yard.hello(worker)
        yard.beat(worker)
    assert yard.ended(speaking).finish is Finish.ERROR
    assert len(yard.where(silent)) >= 2
    assert silent not in yard.heard


def test_choices_over_a_whole_fleet() -> None:
    """From the ask to the end in virtual time: three texts, one end, usage over all of them."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(config(workers=1), clock) as world:
            heard: list[Generated] = []
            done: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

            def listen(event: StreamEvent) -> None:
                if isinstance(event, Generated):
                    heard.append(event)
                else:
                    done.set_result(event)

            world.fleet.submit(ask(20, max_tokens=6, n=3, sampling=HOT), listen)
            ended = await done
            texts = {c: [t for e in heard if e.choice == c for t in e.ids] for c in range(3)}
            assert [len(text) for text in texts.values()] == [6, 6, 6]
            assert len({tuple(text) for text in texts.values()}) == 3
            assert sorted(e.choice for e in heard if e.finish is not None) == [0, 1]
            assert (ended.finish, ended.generated, ended.prompt) == (Finish.LENGTH, 18, 20)
            await world.check_at_rest()

    run_virtual(main)
