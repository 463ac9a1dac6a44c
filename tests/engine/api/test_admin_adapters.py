"""Adapters by the admin door: registered, listed, refused with file and finding, taken away."""

from __future__ import annotations

import asyncio

import httpx

from engine.api.admin import AdminDoor, token_of
from engine.api.server import Server
from engine.model import ModelError


class Registry:
    """The two verbs of the fleet."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    async def load_adapter(self, name, folder):
        if folder == "/broken":
            raise ModelError(["/broken/adapter_config.json: use_dora is true"])
        self.folders[name] = folder
        return {"name": name, "digest": "d", "rank": 8, "targets": ["q_proj"]}

    async def unload_adapter(self, name):
        if name not in self.folders:
            raise LookupError(f"there is no model {name!r}")
        del self.folders[name]


def test_adapters(tmp_path):
    """POST with a path registers and answers what it found; DELETE forgets; names may have slashes."""
    registry = Registry()

    async def main():
        token = token_of(tmp_path / "token")
        server = Server(AdminDoor(registry, token).application())
        url = await server.start("127.0.0.1", 0)
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False, headers=headers) as client:
                await talk(client)
        finally:
            await server.stop()

    async def talk(client):
        async def post(name, **body):
            answer = await client.post(f"/admin/adapters/{name}", json=body)
            return answer.status_code, answer.json()

        found = {"name": "org/sql", "digest": "d", "rank": 8, "targets": ["q_proj"]}
        assert await post("org/sql", path="/one") == (200, found)
        assert registry.folders == {"org/sql": "/one"}
        status, body = await post("org/sql", path="/broken")
        assert (status, body["error"]["message"]) == (400, "/broken/adapter_config.json: use_dora is true")
        for wrong in ({}, {"path": 7}, {"path": ""}):
            status, body = await post("x", **wrong)
            assert (status, body["error"]["code"]) == (400, "invalid_value")
            assert "PEFT folder" in body["error"]["message"]
        assert (await client.delete("/admin/adapters/org/sql")).status_code == 200
        assert (await client.delete("/admin/adapters/org/sql")).status_code == 404
        assert registry.folders == {}

    asyncio.run(main())
