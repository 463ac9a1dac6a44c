"""What a request's headers say: who asks, until when, and what is told back."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.errors import ApiError
from engine.api.exchange import ApiRequest, Headers

_OURS = ("x-request-id", "x-headrace-class", "x-headrace-tenant", "x-headrace-session")


def check_text(headers: Mapping[str, str]) -> None:
    """Raises ApiError 400 for a header of ours that is no UTF-8 (a server hands on its bytes as lone
    surrogates): such a name could neither be sent to a worker nor echoed."""
    for name in _OURS:
        try:
            headers.get(name, "").encode()
        except UnicodeEncodeError:
            raise ApiError(400, "invalid_value", f"the header {name} is not UTF-8") from None


def tenant(headers: Mapping[str, str]) -> str:
    """Who pays; ``default`` when nobody is named."""
    return headers.get("x-headrace-tenant", "default")


def echo(request: ApiRequest) -> Headers:
    """The headers that come back: the client's own id, where it can be printed."""
    own = request.headers.get("x-request-id")
    return (("X-Request-Id", own),) if own and own.isprintable() else ()


def deadline_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that a request may take, from X-Deadline-Ms. Raises ApiError 400."""
    given = headers.get("x-deadline-ms")
    if given is None:
        return None
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds < 1e10:
        raise ApiError(400, "invalid_value", f"X-Deadline-Ms: {given!r} is no number of ms above 0")
    return milliseconds / 1000
