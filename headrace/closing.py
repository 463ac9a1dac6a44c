"""The last line on stdout, which closes a command whatever happened in it (JOINTS 7)."""

from __future__ import annotations

import json
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from headrace import console
from headrace.errors import BenchError, Interrupted, TargetFailed, UsageFailed


def end(last_line: Mapping[str, Any]) -> NoReturn:
    """The last line, then its exit code."""
    _say(last_line)
    raise typer.Exit(int(last_line["exit"]))


def own_fault(error: Exception) -> int:
    """Says that it is one, within its handler; the exit code. It is no failed gate."""
    traceback.print_exc()
    console.complain(BenchError(f"a fault of headrace itself, please report it: {error!r}"))
    return TargetFailed.exit_code


@contextmanager
def closed_also_on_error() -> Iterator[None]:
    """What ends early says why on stderr, also on Ctrl-C and SIGTERM. A fault of our own is no failed gate:
    it ends like a target that failed, with its traceback."""
    try:
        with _terminated_like_ctrl_c():
            yield
    except BenchError as error:
        _failed(error)
    except KeyboardInterrupt:
        _failed(Interrupted("interrupted before there was a verdict"))
    except Exception as error:
        end(_error_line(own_fault(error)))


@contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # which alone may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _failed(error: BenchError) -> NoReturn:
    console.complain(error)
    end(_error_line(error.exit_code, isinstance(error, Interrupted)))


class Closing(TyperCommand):
    """A command whose last line also comes where its options are wrong."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except typer.Exit:  # --help
            raise
        except Exception:
            _say(_error_line(UsageFailed.exit_code))
            raise


def _error_line(code: int, interrupted: bool = False) -> dict[str, Any]:
    verdict = "inconclusive" if interrupted else "error"
    return {"verdict": verdict, "client": None, "interrupted": interrupted, "exit": code, "run": None}


def _say(last_line: Mapping[str, Any]) -> None:
    print(json.dumps(last_line), flush=True)
