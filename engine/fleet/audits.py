"""Asking every worker for its invariants (ENGINE 15), and taking the answers that come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from engine import messages as m

AUDIT_WAIT_S = 10.0
"""A worker answers between two steps; one that does not in this time is reported as not answering."""


class Audits:
    """``send`` reaches one worker."""

    def __init__(self, send: Callable[[int, m.ToWorker], None]) -> None:
        self._send = send
        self._asked = 0
        self._waiting: dict[tuple[int, int], asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, workers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The audit of each of these workers that answers in time."""
        self._asked += 1
        number, loop = self._asked, asyncio.get_running_loop()
        asked = {worker: loop.create_future() for worker in workers}
        for worker, answer in asked.items():
            self._waiting[worker, number] = answer
            self._send(worker, m.AskAudit(number))
        if asked:
            await asyncio.wait(asked.values(), timeout=AUDIT_WAIT_S)
        for worker in asked:
            self._waiting.pop((worker, number), None)
        return {worker: answer.result() for worker, answer in asked.items() if answer.done()}

    def answered(self, worker: int, report: m.AuditReport) -> None:
        answer = self._waiting.get((worker, report.ask_id))
        if answer is not None and not answer.done():
            answer.set_result(report.audit)
