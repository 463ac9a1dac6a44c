"""The live HTTP server: aiohttp carries bytes between sockets and the Service, and decides nothing.

Buffers: what a reader has not taken waits in the socket's buffer (64 KiB high water) and then here, at
most the rest of the answer, which ``out_max`` bounds. A reader that takes nothing for
``READER_STALL_S`` is cut off and its request cancelled (FLEET F4).
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from engine.api.answers import dump
from engine.api.errors import ApiError
from engine.api.exchange import ApiRequest, Headers
from engine.api.service import Service

READER_STALL_S = 30.0
KEEPALIVE_S = 3600.0
"""Idle connections stay open: a client's warm pool must not lose a race with us."""
MAX_BODY = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class _Outbox:
    """The sink of one exchange: collects what the service writes for the task that sends it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._parts: list[bytes] = []
        self._ended = False
        self._news = asyncio.Event()

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._news.set()

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Everything written since the last call, at least something; None at the end."""
        while not self._parts:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    async def started(self) -> None:
        await self._news.wait()


async def _send(request: web.Request, outbox: _Outbox, stall_s: float) -> web.StreamResponse:
    await outbox.started()
    response = web.StreamResponse(status=outbox.status, headers=dict(outbox.headers))
    if response.content_length is None:
        response.enable_chunked_encoding()
    async with asyncio.timeout(stall_s):
        await response.prepare(request)
    while (data := await outbox.next()) is not None:
        async with asyncio.timeout(stall_s):
            await response.write(data)
    async with asyncio.timeout(stall_s):
        await response.write_eof()
    return response


async def _body(request: web.Request) -> bytes:
    """All of it, unpacked if it came packed. Raises ApiError."""
    too_large = ApiError(413, "body_too_large", f"the body is longer than {MAX_BODY} bytes")
    if (request.content_length or 0) > MAX_BODY:
        raise too_large
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError as error:
        raise ApiError(
            400, "invalid_body", f"the body cannot be read: {' '.join(str(error).split())}"
        ) from error


def _application(service: Service, stall_s: float) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await _body(request)
        except ApiError as error:
            content = dump(error.body())
            return web.Response(status=error.status, body=content, content_type="application/json")
        headers = {name.lower(): value for name, value in request.headers.items()}
        outbox = _Outbox()
        abort = service.handle(ApiRequest(request.method, request.path, headers, body), outbox)
        try:
            return await _send(request, outbox, stall_s)
        except TimeoutError:
            log.warning("a reader of %s took nothing for %g s: cut off", request.path, stall_s)
            abort()
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("reader stalled") from None
        except BaseException:  # closed by the client, or broken: nobody reads on, so nothing may compute on
            abort()
            raise

    application = web.Application(client_max_size=MAX_BODY)
    application.router.add_route("*", "/{path:.*}", handle)
    return application


class Server:
    """A listening server around one aiohttp application."""

    def __init__(self, application: web.Application) -> None:
        # Without handler_cancellation a handler learns of a closed connection by its next write only.
        # TCP_NODELAY is asyncio's default for every TCP connection.
        self._runner = web.AppRunner(
            application,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=2.0,
            keepalive_timeout=KEEPALIVE_S,
        )

    @classmethod
    def of(cls, service: Service, stall_s: float = READER_STALL_S) -> Server:
        return cls(_application(service, stall_s))

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes a free one. Returns the URL. Raises OSError if the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=1024).start()
        bound = self._runner.addresses[0][1]
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{bound}"

    async def stop(self) -> None:
        """Close the listening socket, then the connections."""
        await self._runner.cleanup()
