"""OpenAI-shaped errors: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

from engine.fleet.backend import Ended, Rejected
from engine.request import Finish

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

_NOBODY_S = {"adapter_unavailable": 2, "no_worker": 2}
"""Retry-After in seconds where no worker could serve a request: ENGINE E32's of a queue without samples."""


class ApiError(Exception):
    """An answer that is no success. ``retry_after`` in seconds goes into the Retry-After header; with one it
    is ``retriable``, unless that is said."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        retriable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.retriable = True if retriable is None and retry_after is not None else retriable

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error: dict[str, Any] = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        if self.retriable is not None:
            error["retriable"] = self.retriable
        return {"error": error}


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """400: ``param`` is the field that is wrong."""
    return ApiError(400, code, message, param=param)


def of_rejected(rejected: Rejected) -> ApiError:
    return ApiError(rejected.status, rejected.code, rejected.message, retry_after=rejected.retry_after)


def of_ended(ended: Ended) -> ApiError | None:
    """The error that an ending is to the client; None when it is a completion. A client that cancelled
    is not there any more, so CANCELLED here was somebody else's doing."""
    if ended.finish in (Finish.STOP, Finish.LENGTH):
        return None
    if ended.finish is Finish.EXPIRED:
        message = ended.message or "the request's deadline passed before it was complete"
        return ApiError(504, ended.code or "deadline_exceeded", message, retriable=ended.retriable)
    if ended.finish is Finish.CANCELLED:
        return ApiError(503, ended.code or "cancelled", ended.message or "cancelled by the operator")
    status = 503 if ended.retriable else 500
    message = ended.message or "the engine failed to complete this request"
    code = ended.code or "internal_error"
    wait = _NOBODY_S.get(code) if ended.retriable else None
    return ApiError(status, code, message, retry_after=wait, retriable=ended.retriable)
