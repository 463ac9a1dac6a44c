"""Which request gets which answer."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.reference import log
from loadgen.reference.answers import Answer, Answers
from loadgen.reference.http_answers import error_body, json_answer, whole_answer
from loadgen.reference.requests import BadRequest, Request, asked
from loadgen.reference.script import Script
from loadgen.reference.wire import WIRES


class Routes:
    """``log_data`` gives the bytes of the whole log after its magic; None = there is no log."""

    def __init__(self, script: Script, process: int, log_data: Callable[[], bytes] | None) -> None:
        self._model = script.model
        self._answers = Answers(script, process)
        self._log_data = log_data

    def answer(self, request: Request) -> Answer:
        path, _, query = request.path.partition("?")
        if path in WIRES:
            return self._generation(path, request)
        if request.method != "GET":
            return _error(405, "use GET")
        match path:
            case "/health":
                return _whole(json_answer(200, {"status": "ok"}))
            case "/v1/models":
                model = {"id": self._model, "object": "model", "owned_by": "reference"}
                return _whole(json_answer(200, {"object": "list", "data": [model]}))
            case "/reference/log":
                return self._log(query)
        return _error(404, f"no such path: {path}")

    def _generation(self, path: str, request: Request) -> Answer:
        if request.method != "POST":
            return _error(405, "use POST")
        try:
            return self._answers.answer(path, asked(request.body), request.body.count(b" ") + 1)
        except BadRequest as error:
            return bad_request(str(error))

    def _log(self, query: str) -> Answer:
        """What ended at least 0.2 s ago: the other processes have written it by then."""
        if self._log_data is None:
            return _error(404, "this server keeps no log")
        data = self._log_data()
        if query == "format=binary":
            return _whole(whole_answer(200, "application/octet-stream", log.MAGIC + data))
        return _whole(whole_answer(200, "application/x-ndjson", log.ndjson(data)))


def bad_request(message: str) -> Answer:
    return _whole(json_answer(400, error_body(message, 400, "invalid_request_error")), 400)


def _error(status: int, message: str) -> Answer:
    return _whole(json_answer(status, error_body(message, status, "invalid_request_error")), status)


def _whole(data: bytes, status: int = 200) -> Answer:
    return Answer((data,), (0,), (0,), status)
