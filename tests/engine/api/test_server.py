import asyncio
import gzip
import json
import stat

import httpx
import pytest

from engine.api.admin import AdminDoor, token_of
from engine.api.server import Server
from engine.api.service import Service
from engine.request import Finish
from tests.engine.api.fake import CONFIG, STAMPS, TOKENIZER, FakeFleet

pytestmark = pytest.mark.e2e
BODY = {"model": "tiny", "prompt": "hi", "stream": True}


async def until(condition, seconds=5.0):
    """Real sockets: wait for what the other side does next."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def raw_post(port: int, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


def served(test, **options):
    """Run ``test(fleet, url, port)`` against a server on a free port."""

    async def main():
        fleet = FakeFleet()
        server = Server.of(Service(fleet, TOKENIZER, CONFIG, STAMPS), **options)
        url = await server.start("127.0.0.1", 0)
        try:
            await test(fleet, url, int(url.rsplit(":", 1)[1]))
        finally:
            await server.stop()

    asyncio.run(main())


def test_bytes_over_a_socket():
    """A stream arrives chunk by chunk as it is written, an error with its status and headers."""

    async def test(fleet, url, port):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            async with client.stream("POST", "/v1/completions", json=BODY) as response:
                pass_on = response.aiter_text()
                fleet_said = asyncio.ensure_future(anext(pass_on))
                assert response.status_code == 200
                assert "one" in await fleet_said
                fleet.say("two")
                assert "two" in await anext(pass_on)
                fleet.end(Finish.STOP, 6)
                rest = "".join([part async for part in pass_on])
                assert rest.endswith("data: [DONE]\n\n")
            fleet.reason = ("loading", 2)
            ready = await client.get("/ready")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "2")
            missing = await client.get("/nothing")
            assert missing.json()["error"]["code"] == "unknown_path"

    async def with_speaker(fleet, url, port):
        async def speak():
            await until(lambda: fleet.asks)
            fleet.say("one")

        await asyncio.gather(test(fleet, url, port), speak())

    served(with_speaker)


@pytest.mark.parametrize("spoken", [False, True])
def test_a_closed_connection_cancels_within_100_ms(spoken):
    """A client that goes away, before or while it is answered, cancels its request (E34)."""

    async def test(fleet, url, port):
        _, writer = await raw_post(port, BODY)
        await until(lambda: fleet.asks)
        if spoken:
            fleet.say("one")
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        closed = loop.time()
        writer.close()
        await until(lambda: fleet.cancels)
        assert loop.time() - closed < 0.1
        assert fleet.cancels == [(1, Finish.CANCELLED)]

    served(test)


def test_a_stalled_reader_is_cut_off():
    """A reader that takes nothing loses its stream and its request; others go on (F4)."""

    async def test(fleet, url, port):
        reader, writer = await raw_post(port, BODY)
        await until(lambda: fleet.asks)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(30_000):  # some 5 MB of events, more than the sockets' buffers take
            fleet.say("x")
        await until(lambda: fleet.cancels, 10)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/live")).status_code == 200
        writer.transport.abort()

    served(test, stall_s=0.3)


def test_bodies_that_cannot_be_read():
    """Packed and broken, or announced too large: the client's error in our shape, and the next is served."""

    async def test(fleet, url, port):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for body in (b"plain", gzip.compress(b"{}")[:-4] + b"rest"):
                headers = {"Content-Encoding": "gzip"}
                answer = await client.post("/v1/completions", content=body, headers=headers)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "invalid_body"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 413")
        writer.close()
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            packed = gzip.compress(json.dumps({"model": "tiny", "prompt": ""}).encode())
            answer = await client.post(
                "/v1/completions", content=packed, headers={"Content-Encoding": "gzip"}
            )
            assert answer.json()["error"]["message"] == "prompt: must not be empty"
        assert fleet.asks == []

    served(test)


class FakeControls:
    def __init__(self) -> None:
        self.calls: list[object] = []

    async def state(self):
        return {"workers": []}

    async def kill(self, worker):
        if worker > 1:
            raise LookupError(f"there is no worker {worker}")
        self.calls.append(("kill", worker))

    async def drain(self, worker):
        raise NotImplementedError("drain is not there")

    async def hold(self, phase, request=None, worker=None):
        if phase != "queued":
            raise ValueError("phase: unknown")
        self.calls.append(("hold", phase, request, worker))
        return 7

    async def held(self, hold_id, timeout):
        return {"request": "r", "worker": 0, "phase": "queued"} if hold_id == 7 else None

    async def release(self, hold_id):
        self.calls.append(("release", hold_id))

    async def truth(self, after=0):
        return [{"id": 1}, {"id": 2}][after:]

    async def configure(self, changes):
        return changes

    freeze = thaw = kill
    audit = config = cache_reset = state

    async def pool(self, blocks):
        self.calls.append(("pool", blocks))


def test_the_admin_door(tmp_path):
    """Every verb by its path, refusals as errors, nothing without the token."""
    controls = FakeControls()

    async def main():
        token = token_of(tmp_path / "token")
        server = Server(AdminDoor(controls, token).application())
        url = await server.start("127.0.0.1", 0)
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                for token_given in (b"Bearer", b"Bearer \xff", b"Bearer \xc3\xa9"):
                    answer = await client.get("/admin/state", headers={b"Authorization": token_given})
                    assert answer.json()["error"]["code"] == "unauthorized"
                assert (await client.get("/admin/state")).status_code == 401
                client.headers["Authorization"] = f"Bearer {token}"
                await talk(client)
        finally:
            await server.stop()

    async def talk(client):
        async def post(path, **body):
            response = await client.post(path, json=body)
            return response.status_code, response.json()

        assert (await client.get("/admin/state")).json() == {"workers": []}
        assert await post("/admin/workers/1/kill") == (200, {})
        assert (await post("/admin/workers/2/kill"))[0] == 404
        status, body = await post("/admin/workers/x/kill")
        assert (status, body["error"]["message"]) == (400, "worker: a number is needed, not 'x'")
        assert (await post("/admin/workers/0/fly"))[0] == 404
        assert (await post("/admin/workers/0/drain"))[0] == 501
        assert await post("/admin/hold", phase="queued", request="r") == (200, {"hold_id": 7})
        assert (await post("/admin/hold", phase="later"))[0] == 400
        assert (await post("/admin/hold"))[0] == 400
        for wrong in (
            {"request": 5},
            {"request": "\ud800"},
            {"worker": "0"},
            {"worker": True},
            {"worker": [0]},
        ):
            answer = await client.post("/admin/hold", content=json.dumps({"phase": "queued"} | wrong))
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value"), wrong
        held = (await client.get("/admin/hold/7", params={"timeout": "1"})).json()
        assert held["held"]["request"] == "r"
        assert (await client.get("/admin/hold/8")).json() == {"held": None}
        assert (await client.get("/admin/hold/8", params={"timeout": "soon"})).status_code == 400
        assert await post("/admin/release", hold_id=7) == (200, {})
        assert (await post("/admin/pool", blocks="many"))[0] == 400
        broken = await client.post("/admin/pool", content=b"{", headers={"Content-Encoding": "gzip"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_value")
        assert (await post("/admin/pool", blocks=10**30))[0] == 400
        assert await post("/admin/pool", blocks=5) == (200, {})
        changed = await client.patch("/admin/config", json={"queue.max_requests": 5})
        assert changed.json() == {"queue.max_requests": 5}
        truth = await client.get("/admin/truth", params={"after": 1})
        assert truth.text == '{"id":2}\n'
        assert (await client.get("/admin/nothing")).json()["error"]["code"] == "unknown_path"

    asyncio.run(main())
    assert controls.calls == [
        ("kill", 1),
        ("hold", "queued", "r", None),
        ("release", 7),
        ("pool", 5),
    ]


def test_the_token_file_is_the_owners_alone(tmp_path):
    """A new token file has mode 0600; one that others can read is refused."""
    path = tmp_path / "token"
    token = token_of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == token
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        token_of(path)


def test_an_answer_that_cannot_be_sent_cancels_its_request(monkeypatch):
    """Whatever breaks between the engine and the socket, nothing goes on computing for nobody."""

    async def broken(*_):
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "a header that has no bytes")

    async def test(fleet, url, port):
        monkeypatch.setattr("engine.api.server._send", broken)
        _, writer = await raw_post(port, BODY)
        await until(lambda: fleet.cancels)
        assert fleet.cancels == [(1, Finish.CANCELLED)]
        writer.close()

    served(test)
