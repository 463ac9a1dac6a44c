"""LoRA adapters at the gateway: names and content, who is told what, and what is never served silently."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from engine import messages as m
from engine.fleet.adapters import Adapter
from engine.fleet.backend import Rejected
from engine.fleet.health import State
from engine.model import ModelError
from engine.request import Finish, MissReason
from loadgen.clock import Clock, run_virtual
from tests.engine import lora_folders
from tests.engine.fleet.world import S, VirtualFleet, Yard, ask, config

ONE = config(workers=1)


def adapter(name: str = "x", digest: str = "d1", folder: str = "/one") -> Adapter:
    return Adapter(name, digest, folder, 8, ("q_proj",))


def put(yard: Yard, *which: Adapter) -> None:
    for each in which:
        yard.gateway.adapters.put(each)
    settle(yard)


def remove(yard: Yard, name: str) -> None:
    yard.gateway.adapters.remove(name)
    settle(yard)


def settle(yard: Yard) -> None:
    yard.gateway.tick(yard.now)
    yard.collect()


def told(yard: Yard, worker: int = 0) -> list[tuple[str, str]]:
    """What a worker was told of adapters, and takes note of it."""
    said = [
        ("load" if isinstance(message, m.LoadAdapter) else "unload", message.digest)
        for message in yard.sent[worker]
        if isinstance(message, m.LoadAdapter | m.UnloadAdapter)
    ]
    yard.sent[worker] = [
        message for message in yard.sent[worker] if not isinstance(message, m.LoadAdapter | m.UnloadAdapter)
    ]
    return said


def test_a_request_carries_the_content_that_its_name_stands_for() -> None:
    """By digest, and in its namespace root; the base model carries none."""
    yard = Yard()
    put(yard, adapter())
    ids = [yard.submit(ask(64, 1, adapter=name)) for name in ("x", None)]
    requests = {request.id: request for worker in (0, 1) for request in yard.requests(worker)}
    assert [requests[id].adapter for id in ids] == ["d1", None]
    assert requests[ids[0]].root != requests[ids[1]].root
    put(yard, adapter(digest="d2"))
    third = yard.submit(ask(64, 1, adapter="x"))
    request = next(r for worker in (0, 1) for r in yard.requests(worker) if r.id == third)
    assert request.adapter == "d2"
    assert request.root not in {r.root for r in requests.values()}


def test_one_root_for_each_name_and_content() -> None:
    """The same content under another name, and the same name with another content, share nothing."""
    yard = Yard()
    roots = set()
    for name, digest in (("x", "d1"), ("y", "d1"), ("x", "d2"), ("d1", "x")):
        put(yard, adapter(name, digest))
        yard.submit(ask(64, 1, adapter=name))
        roots |= {request.root for worker in (0, 1) for request in yard.requests(worker)}
    for fields in ({}, {"cache_salt": "x"}, {"tenant": "x"}, {"cache_salt": "d1"}):
        yard.submit(ask(64, 1, **fields))
        roots |= {request.root for worker in (0, 1) for request in yard.requests(worker)}
    assert len(roots) == 8


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    """404, counted; never the base model in its place."""
    yard = Yard()
    put(yard, adapter("sql"), adapter("chat", "d2"))
    with pytest.raises(Rejected) as refused:
        yard.submit(ask(adapter="sqll"))
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert refused.value.message == "there is no model 'sqll'; there is 'simulated', 'sql', 'chat'"
    assert yard.counter("rejections", reason="model_not_found", class_="default") == 1
    remove(yard, "sql")
    with pytest.raises(Rejected, match="there is no model 'sql'"):
        yard.submit(ask(adapter="sql"))
    with pytest.raises(LookupError, match="there is no model 'sql'"):
        yard.gateway.adapters.remove("sql")
    with pytest.raises(ValueError, match="the model's own name"):
        yard.gateway.adapters.put(adapter("simulated"))


def test_what_has_lost_its_name_stays_until_its_last_request_has_ended() -> None:
    """Also for one that waits at the gateway; then every worker drops it, once."""
    yard = Yard()
    put(yard, adapter())
    told(yard)
    running = yard.submit(ask(64, 1, adapter="x"))
    point = yard.gateway.hold("queued", "held", None, yard.now)
    waiting = yard.submit(ask(64, 2, adapter="x", client_id="held"))
    assert yard.where(waiting) == []
    put(yard, adapter(digest="d2"))
    assert told(yard) == [("load", "d2")]
    yard.done(yard.where(running)[0], running)
    assert told(yard) == []
    yard.gateway.release(point.id, yard.now)
    yard.collect()
    (worker,) = yard.where(waiting)
    assert next(r for r in yard.requests(worker) if r.id == waiting).adapter == "d1"
    yard.done(worker, waiting)
    assert told(yard) == [("unload", "d1")]
    assert told(yard, 1) == [("load", "d1"), ("load", "d2"), ("unload", "d1")]


def test_content_that_gets_its_name_back_stays() -> None:
    """Also when that happens while the last request that began with it is still running."""
    yard = Yard(ONE)
    put(yard, adapter())
    running = yard.submit(ask(64, 1, adapter="x"))
    remove(yard, "x")
    put(yard, adapter())
    told(yard)
    yard.done(0, running)
    assert told(yard) == []


def test_content_with_two_names_stays_with_the_second() -> None:
    """And is read from that one's folder from then on."""
    yard = Yard()
    put(yard, adapter("x", folder="/one"), adapter("y", folder="/two"))
    assert told(yard) == [("load", "d1"), ("load", "d1")]
    remove(yard, "y")
    assert [message for message in yard.sent[0] if isinstance(message, m.LoadAdapter)] == [
        m.LoadAdapter("d1", "/one")
    ]
    told(yard)
    yard.submit(ask(adapter="x"))
    remove(yard, "x")
    assert told(yard) == []


def test_a_new_incarnation_hears_of_all_before_its_first_request() -> None:
    """Of those with a name, and of those that somebody still runs with."""
    yard = Yard(ONE)
    put(yard, adapter("x", "d1"), adapter("y", "d2"))
    running = yard.submit(ask(64, 1, adapter="x"))
    remove(yard, "x")
    yard.lose(0)
    yard.sent[0].clear()
    yard.hello(0)
    yard.beat(0)
    yard.pass_time(1)
    kinds = [(type(message).__name__, getattr(message, "digest", None)) for message in yard.sent[0]]
    assert kinds[:3] == [("LoadAdapter", "d1"), ("LoadAdapter", "d2"), ("Submit", None)]
    yard.done(0, running, attempt=2)
    assert yard.ended(running).finish is Finish.LENGTH
    assert told(yard)[-1] == ("unload", "d1")


def fails_to_load(yard: Yard, worker: int, id: int, attempt: int = 1) -> None:
    yard.say(worker, m.AdapterState("d1", False, "/one: no such folder"))
    yard.done(worker, id, Finish.ERROR, attempt)


def test_a_worker_that_cannot_load_it_is_not_the_last_word() -> None:
    """The request goes to another one; where none can, it ends with the reason, and the registry shows it."""
    yard = Yard()
    put(yard, adapter())
    request = yard.submit(ask(adapter="x"))
    (first,) = yard.where(request)
    fails_to_load(yard, first, request)
    yard.pass_time(1)
    second = 1 - first
    assert yard.where(request) == sorted([first, second])
    assert yard.counter("retries", reason="adapter_unavailable") == 1
    fails_to_load(yard, second, request, 2)
    ended = yard.ended(request)
    assert (ended.finish, ended.code) == (Finish.ERROR, "adapter_unavailable")
    assert ended.message == "/one: no such folder"
    (shown,) = yard.gateway.adapters.state()
    assert shown["workers"] == {"0": "/one: no such folder", "1": "/one: no such folder"}
    yard.say(first, m.AdapterState("d1", True))
    assert yard.gateway.adapters.state()[0]["workers"][str(first)] == "loaded"


def test_a_broken_adapter_ejects_no_worker() -> None:
    """Nothing is wrong with a worker whose requests fail for want of their adapter."""
    yard = Yard(ONE)
    put(yard, adapter())
    for seed in range(5):
        request = yard.submit(ask(64, seed, adapter="x"))
        fails_to_load(yard, 0, request)
        assert yard.ended(request).code == "adapter_unavailable"
    assert yard.gateway.health[0].breaker.open_until is None
    base = yard.submit(ask(64, 9))
    assert yard.where(base) == [0]


def test_a_request_goes_where_its_adapter_is() -> None:
    """The time to load it counts as work there; one that has more to do before is not chosen (F21)."""
    yard = Yard()
    put(yard, adapter())
    yard.say(0, m.AdapterState("d1", False))
    yard.say(1, m.AdapterState("d1", True, seconds=0.5))
    for seed in range(6):
        request = yard.submit(ask(64, seed, adapter="x"))
        assert yard.where(request) == [1]
        yard.done(1, request)
    assert yard.where(yard.submit(ask(1600, 50, adapter="x"))) == [1]
    assert yard.where(yard.submit(ask(64, 51, adapter="x"))) == [0]


# -- in virtual time, with folders ------------------------------------------------------------------


def test_adapters_of_the_configuration_are_there_from_the_start(tmp_path) -> None:
    """And one that cannot be served keeps the engine from starting, with file and finding."""
    lora_folders.adapter(tmp_path / "sql")
    of = config(adapters={"sql": str(tmp_path / "sql")})

    async def main(clock: Clock) -> None:
        async with VirtualFleet(of, clock) as world:
            assert world.fleet.adapters() == ("sql",)
            _, stream = world.submit(ask(adapter="sql"))
            await world.quiet()
            assert stream.end.finish is Finish.LENGTH
            (shown,) = (await world.fleet.state())["adapters"]
            assert (shown["name"], shown["rank"], shown["workers"]) == (
                "sql",
                4,
                {"0": "loaded", "1": "loaded"},
            )
            await world.check_at_rest()

    run_virtual(main)
    lora_folders.adapter(tmp_path / "sql", use_dora=True)
    with pytest.raises(ModelError, match="use_dora is true"):
        run_virtual(main)


def test_namespaces(tmp_path) -> None:
    """C7: base, salt X, adapter X, X with other weights, other tenants: none hits another's blocks, each its
    own on the second call; the reason is different_namespace; who runs while X changes keeps its text."""
    one, two = (str(lora_folders.adapter(tmp_path / str(seed), seed)) for seed in (0, 1))
    of = dataclasses.replace(ONE, memory=dataclasses.replace(ONE.memory, block_size=8))

    async def main(clock: Clock) -> None:
        async with VirtualFleet(of, clock) as world:

            async def serve(**fields):
                _, stream = world.submit(ask(33, 1, **fields))
                await world.quiet()
                return stream

            first = await world.fleet.load_adapter("X", one)
            texts = {}
            for name, fields in {
                "base": {},
                "salt": {"cache_salt": "X"},
                "adapter": {"adapter": "X"},
                "tenant": {"tenant": "A"},
            }.items():
                cold, warm = await serve(**fields), await serve(**fields)
                assert (cold.end.cached, warm.end.cached) == (0, 32)
                if name != "base":
                    assert {miss.reason for miss in cold.end.misses} == {
                        MissReason.DIFFERENT_NAMESPACE,
                        MissReason.BELOW_BLOCK,
                    }
                assert cold.tokens == warm.tokens
                texts[name] = cold.tokens
            assert texts["base"] == texts["salt"] == texts["tenant"] != texts["adapter"]

            _, running = world.submit(ask(33, 1, adapter="X"))
            await asyncio.sleep(0.1)
            assert 0 < len(running.tokens) < 16
            second = await world.fleet.load_adapter("X", two)
            assert second["digest"] != first["digest"]
            cold, warm = await serve(adapter="X"), await serve(adapter="X")
            assert (cold.end.cached, warm.end.cached) == (0, 32)
            assert running.tokens == texts["adapter"] != cold.tokens == warm.tokens

            await world.fleet.load_adapter("X", one)  # the first content again: its blocks are still right
            again = await serve(adapter="X")
            assert (again.end.cached, again.tokens) == (32, texts["adapter"])
            await world.fleet.unload_adapter("X")
            with pytest.raises(Rejected, match="there is no model 'X'"):
                world.submit(ask(33, 1, adapter="X"))
            await world.check_at_rest()

    run_virtual(main)


def test_a_worker_that_dies_comes_back_with_its_adapters() -> None:
    """A request is begun again there with the content that it named, after a restart too."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            await world.fleet.load_adapter("X", "/nowhere/one")
            _, before = world.submit(ask(40, 1, adapter="X"))
            await world.quiet()
            _, caught = world.submit(ask(40, 1, adapter="X"))
            await world.fleet.kill(0)
            await world.fleet.load_adapter("X", "/nowhere/two")
            await world.quiet()
            assert caught.tokens == before.tokens
            assert caught.end.finish is Finish.LENGTH
            _, after = world.submit(ask(40, 1, adapter="X"))
            await world.quiet()
            assert after.tokens != before.tokens
            assert world.fleet.gateway.health[0].state is State.IN_ROTATION
            await world.check_at_rest()

    run_virtual(main)


def test_content_that_changes_under_a_worker_is_never_served(tmp_path) -> None:
    """A folder written over after it was registered fails the requests that need it to be read again."""
    folder = str(lora_folders.adapter(tmp_path / "x", 0))
    of = dataclasses.replace(ONE, max_adapters=1)

    async def main(clock: Clock) -> None:
        async with VirtualFleet(of, clock) as world:
            await world.fleet.load_adapter("X", folder)
            await world.fleet.load_adapter("Y", str(lora_folders.adapter(tmp_path / "y", 1)))
            await asyncio.sleep(0.5)
            lora_folders.adapter(tmp_path / "x", 2)
            _, resident = world.submit(ask(40, 1, adapter="X"))
            await world.quiet()
            assert resident.end.finish is Finish.LENGTH  # it was read before the change
            _, other = world.submit(ask(40, 1, adapter="Y"))
            await world.quiet()
            _, changed = world.submit(ask(40, 1, adapter="X"))
            await world.quiet()
            assert other.end.finish is Finish.LENGTH
            assert (changed.end.code, changed.tokens) == ("adapter_unavailable", [])
            assert "changed since it was registered" in (changed.end.message or "")
            await world.fleet.load_adapter("X", folder)
            _, renewed = world.submit(ask(40, 1, adapter="X"))
            await world.quiet()
            assert renewed.end.finish is Finish.LENGTH
            assert renewed.tokens != resident.tokens
            await world.check_at_rest()

    run_virtual(main)


def test_more_adapters_than_places_all_get_their_turn() -> None:
    """Eight names over two places and two workers, all at once: every text is its own, whoever waits."""
    of = config(max_adapters=2)
    names = [f"a{number}" for number in range(8)]

    async def main(clock: Clock) -> None:
        async with VirtualFleet(of, clock) as world:
            for name in names:
                await world.fleet.load_adapter(name, f"/nowhere/{name}")
            alone = {}
            for name in names:
                _, stream = world.submit(ask(40, 1, adapter=name))
                await world.quiet()
                alone[name] = stream.tokens
            streams = [
                (name, world.submit(ask(40, 1, adapter=name, tenant=f"t{turn}"))[1])
                for turn in range(5)
                for name in names
            ]
            await world.quiet()
            for name, stream in streams:
                assert stream.end.finish is Finish.LENGTH
                assert stream.tokens == alone[name]
            assert len({tuple(text) for text in alone.values()}) == len(names)
            assert clock() < 600 * S
            await world.check_at_rest()

    run_virtual(main)
