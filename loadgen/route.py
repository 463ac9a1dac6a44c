"""The addresses of a target, and which failure to connect tells most."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NO_WAY = (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT)
"""This machine has no way there, or no port left for it."""
_NO_SOCKET = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True, slots=True)
class Endpoint:
    family: int
    address: Any
    """As `socket.socket.connect` takes it."""

    def __str__(self) -> str:
        host, port = self.address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Route:
    """The addresses of one target, tried in order; one that worked is tried first from then on. An
    address that swallows what is sent to it is waited for as long as the caller does."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = list(endpoints)
        self._proven: Endpoint | None = None

    @staticmethod
    def literal(host: str, port: int) -> Route | None:
        """None if ``host`` is a name that has to be looked up."""
        try:
            return _route(host, port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            return None

    @staticmethod
    async def resolve(host: str, port: int) -> Route:
        """Raises OSError."""
        return await asyncio.get_running_loop().run_in_executor(None, _route, host, port, 0)

    def worked(self, endpoint: Endpoint) -> None:
        if self._proven != endpoint:
            self._proven = endpoint
            self.endpoints = [endpoint, *(other for other in self.endpoints if other != endpoint)]

    def is_own_limit(self, endpoint: Endpoint, code: int) -> bool:
        """Whether errno ``code`` means that this machine cannot open another connection, wherever to."""
        return code in _NO_SOCKET or (code in _NO_WAY and endpoint == self._proven)


def _route(host: str, port: int, flags: int) -> Route:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return Route([Endpoint(family, address) for family, _, _, _, address in found])


def connect_error(failures: Sequence[OSError]) -> OSError:
    """The failure to report: of an address that this machine has a way to, if there is one."""
    return next((one for one in failures if one.errno not in _NO_WAY), failures[0])
