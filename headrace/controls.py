"""Door 3 of a live engine: faults.Controls spoken over its admin door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx


class HttpControls:
    """The verbs of JOINTS 8 over HTTP. A refused verb raises RuntimeError with the engine's words, OSError
    if nobody answers."""

    def __init__(self, admin_url: str, token_file: Path) -> None:
        token = token_file.read_text().strip()
        self._http = httpx.AsyncClient(
            base_url=admin_url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def state(self) -> dict[str, Any]:
        return await self._call("GET", "/admin/state")

    async def audit(self) -> dict[str, Any]:
        return await self._call("GET", "/admin/audit")

    async def kill(self, worker: int) -> None:
        await self._call("POST", f"/admin/workers/{worker}/kill")

    async def freeze(self, worker: int) -> None:
        await self._call("POST", f"/admin/workers/{worker}/freeze")

    async def thaw(self, worker: int) -> None:
        await self._call("POST", f"/admin/workers/{worker}/thaw")

    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int:
        body = {"phase": phase, "request": request, "worker": worker}
        answer = await self._call("POST", "/admin/hold", {k: v for k, v in body.items() if v is not None})
        return int(answer["hold_id"])

    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None:
        answer = await self._call("GET", f"/admin/hold/{hold_id}?timeout={timeout:g}", wait=timeout + 10)
        found: dict[str, Any] | None = answer.get("held")
        return found

    async def release(self, hold_id: int) -> None:
        await self._call("POST", "/admin/release", {"hold_id": hold_id})

    async def tier(self, disk: str | None) -> None:
        await self._call("POST", "/admin/tier", {"disk": disk})

    async def truth(self) -> list[dict[str, Any]]:
        response = await self._request("GET", "/admin/truth", wait=60.0)
        return [json.loads(line) for line in response.text.splitlines() if line]

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 30.0
    ) -> dict[str, Any]:
        response = await self._request(method, path, body, wait)
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 30.0
    ) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=body, timeout=wait)
        except httpx.TransportError as error:
            raise OSError(f"{path}: {error or type(error).__name__}") from error
        if response.status_code >= 400:
            raise RuntimeError(f"{path}: {response.status_code} {response.text[:300]}")
        return response
