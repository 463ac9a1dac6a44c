"""Recorded loads: the table of traces. Keys are the ``type`` of a scenario's trace block."""

from __future__ import annotations

from loadgen.tracefiles.azure import Azure
from loadgen.tracefiles.bailian import Bailian
from loadgen.tracefiles.base import Trace
from loadgen.tracefiles.burstgpt import BurstGPT
from loadgen.tracefiles.errors import TraceError
from loadgen.tracefiles.mooncake import Mooncake
from loadgen.tracefiles.mt_bench import MTBench
from loadgen.tracefiles.own_run import OwnRun
from loadgen.tracefiles.sharegpt import ShareGPT
from loadgen.tracefiles.swe_agent import SWEAgent
from loadgen.tracefiles.vidur import Vidur
from loadgen.tracefiles.weka import Weka

TRACES: dict[str, type[Trace]] = {
    "mooncake": Mooncake,
    "weka": Weka,
    "azure": Azure,
    "burstgpt": BurstGPT,
    "bailian": Bailian,
    "sharegpt": ShareGPT,
    "swe_agent": SWEAgent,
    "mt_bench": MTBench,
    "vidur": Vidur,
    "run": OwnRun,
}

__all__ = ["TRACES", "Trace", "TraceError"]
