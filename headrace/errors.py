"""What ends a command early, with its exit code (MEASUREMENT 9).

BenchError
├── UsageFailed      2  a scenario, option or file is wrong; nothing was sent
├── TargetFailed     3  the target is unreachable, never got ready, or died by itself
└── Interrupted      4  Ctrl-C before there was a verdict
"""

from __future__ import annotations


class BenchError(Exception):
    """Lines for a person: what, where, and what to do."""

    exit_code = 1

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class UsageFailed(BenchError):
    exit_code = 2


class TargetFailed(BenchError):
    exit_code = 3


class Interrupted(BenchError):
    exit_code = 4
