"""The admin door (JOINTS 8): loopback only, with a bearer token from a file that only its owner reads."""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from aiohttp import web

from engine.api.answers import dump
from engine.api.errors import ApiError
from engine.fleet.backend import Rejected

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_HOLD_WAIT_S = 60.0
MOST = 2**53
"""No number goes to a worker that JSON and msgpack could not both carry."""

N = TypeVar("N", int, float)


class Controls(Protocol):
    """What the admin door does; all of it is the fleet's. A verb that cannot be done raises ValueError
    (bad argument), LookupError (no such worker or hold) or RuntimeError (it failed)."""

    async def config(self) -> dict[str, Any]: ...
    async def configure(self, changes: dict[str, Any]) -> dict[str, Any]: ...
    async def state(self) -> dict[str, Any]: ...
    async def audit(self) -> dict[str, Any]: ...
    async def truth(self, after: int = 0) -> list[dict[str, Any]]: ...
    async def kill(self, worker: int) -> None: ...
    async def freeze(self, worker: int) -> None: ...
    async def thaw(self, worker: int) -> None: ...
    async def drain(self, worker: int) -> None: ...
    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int: ...
    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None: ...
    async def release(self, hold_id: int) -> None: ...
    async def pool(self, blocks: int) -> None: ...
    async def load_adapter(self, name: str, folder: str) -> dict[str, Any]: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def tier(self, disk: str | None) -> None: ...
    async def cache_reset(self) -> None: ...


def token_of(path: Path) -> str:
    """The token in ``path``; made there, readable by the owner only, if there is none yet.

    Raises PermissionError if others can read the file.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise PermissionError(f"{path} has mode {mode:o}: others can read the token; chmod 600") from None
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        token = secrets.token_urlsafe(32)
        file.write(token + "\n")
    return token


class AdminDoor:
    """The routes of the admin door over one Controls."""

    def __init__(self, controls: Controls, token: str) -> None:
        self._controls = controls
        self._expected = f"Bearer {token}".encode()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        route = application.router.add_route
        route("GET", "/admin/config", self._answer(lambda _: self._controls.config()))
        route("PATCH", "/admin/config", self._answer(self._configure))
        route("GET", "/admin/state", self._answer(lambda _: self._controls.state()))
        route("GET", "/admin/audit", self._answer(lambda _: self._controls.audit()))
        route("GET", "/admin/truth", self._truth)
        route("POST", "/admin/workers/{worker}/{verb}", self._answer(self._worker))
        route("POST", "/admin/hold", self._answer(self._hold))
        route("GET", "/admin/hold/{hold_id}", self._answer(self._held))
        route("POST", "/admin/release", self._answer(self._release))
        route("POST", "/admin/adapters/{name:.+}", self._answer(self._load_adapter))
        route("DELETE", "/admin/adapters/{name:.+}", self._answer(self._unload_adapter))
        route("POST", "/admin/pool", self._answer(self._pool))
        route("POST", "/admin/tier", self._answer(self._tier))
        route("POST", "/admin/cache/reset", self._answer(lambda _: self._controls.cache_reset()))
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, self._expected):
            return _error(ApiError(401, "unauthorized", "the admin door needs its bearer token"))
        try:
            return await handler(request)
        except ApiError as error:
            return _error(error)
        except Rejected as rejected:
            return _error(ApiError(rejected.status, rejected.code, rejected.message))
        except LookupError as error:
            return _error(ApiError(404, "not_found", str(error.args[0] if error.args else error)))
        except ValueError as error:
            return _error(ApiError(400, "invalid_value", str(error)))
        except NotImplementedError as error:
            return _error(ApiError(501, "not_supported", str(error)))
        except RuntimeError as error:
            return _error(ApiError(409, "failed", str(error)))
        except web.HTTPException as error:  # unknown path or method
            return _error(ApiError(error.status, "unknown_path", f"{request.method} {request.path}"))

    def _answer(
        self, act: Callable[[web.Request], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            result = await act(request)
            return _json({} if result is None else result)

        return handler

    async def _configure(self, request: web.Request) -> dict[str, Any]:
        return await self._controls.configure(await _body(request))

    async def _worker(self, request: web.Request) -> None:
        verbs: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": self._controls.kill,
            "freeze": self._controls.freeze,
            "thaw": self._controls.thaw,
            "drain": self._controls.drain,
        }
        verb = verbs.get(request.match_info["verb"])
        if verb is None:
            raise LookupError(f"workers have no {request.match_info['verb']}; they have {', '.join(verbs)}")
        await verb(_number("worker", request.match_info["worker"]))

    async def _hold(self, request: web.Request) -> dict[str, Any]:
        body = await _body(request)
        phase = body.get("phase")
        if not isinstance(phase, str):
            raise ValueError("phase: one of queued, admitted, prefill:k, transfer:k, decode:n")
        of = None if body.get("request") is None else _text("request", body["request"])
        worker = None if body.get("worker") is None else _integer(body, "worker")
        return {"hold_id": await self._controls.hold(phase, of, worker)}

    async def _held(self, request: web.Request) -> dict[str, Any]:
        timeout = min(_number("timeout", request.query.get("timeout", "0"), float), MAX_HOLD_WAIT_S)
        return {"held": await self._controls.held(_number("hold", request.match_info["hold_id"]), timeout)}

    async def _release(self, request: web.Request) -> None:
        await self._controls.release(_integer(await _body(request), "hold_id"))

    async def _pool(self, request: web.Request) -> None:
        await self._controls.pool(_integer(await _body(request), "blocks"))

    async def _tier(self, request: web.Request) -> None:
        body = await _body(request)
        if body.keys() != {"disk"}:
            given = ascii(", ".join(body)[:80]) if body else "nothing"
            raise ValueError(f"disk: full, corrupt, or null to heal it, and no more; given is {given}")
        disk = body["disk"]
        await self._controls.tier(None if disk is None else _text("disk", disk))

    async def _load_adapter(self, request: web.Request) -> dict[str, Any]:
        path = (await _body(request)).get("path")
        if not isinstance(path, str) or not path:
            raise ValueError(f"path: the adapter's PEFT folder is needed, not {path!r}")
        name = _text("the adapter's name", request.match_info["name"])
        return await self._controls.load_adapter(name, _text("path", path))

    async def _unload_adapter(self, request: web.Request) -> None:
        await self._controls.unload_adapter(request.match_info["name"])

    async def _truth(self, request: web.Request) -> web.StreamResponse:
        rows = await self._controls.truth(_number("after", request.query.get("after", "0")))
        lines = b"".join(dump(row) + b"\n" for row in rows)
        return web.Response(body=lines, content_type="application/x-ndjson")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except (ValueError, web.RequestPayloadError) as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def _integer(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key}: a whole number is needed, not {value!r}")
    if abs(value) > MOST:
        raise ValueError(f"{key}: at most {MOST}")
    return value


def _text(name: str, value: Any) -> str:
    """Text that can be sent to a worker; a lone surrogate has no UTF-8 form."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: text is needed, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: it is not Unicode text") from None
    return value


def _number(name: str, text: str, kind: type[N] = int) -> N:
    """A number that stands in the address."""
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}: a number is needed, not {text[:80]!r}") from None


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump(value), content_type="application/json")


def _error(error: ApiError) -> web.Response:
    return _json(error.body(), error.status)
