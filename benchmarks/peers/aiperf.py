"""``aiperf profile``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.tool import PROMPT_TOKENS, Ask, Quantiles, Reported, ToolFailed, execute
from loadgen.reference.group import ReferenceServer

_RESULT = "profile_export_aiperf.json"
_PHASES = "phase_manifest.json"


@dataclass(frozen=True, slots=True)
class Aiperf:
    env: Path
    version: str
    name: str = "aiperf"

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        environment = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(ask.hub),
            "AIPERF_HTTP_CONNECTION_LIMIT": "20000",
            "AIPERF_DATASET_PREFORMAT_PAYLOADS": "true",
        }
        execute(self.command(ask, server.url, folder), environment, folder, ask.core, ask.limit_s)
        return read(folder)

    def command(self, ask: Ask, url: str, folder: Path) -> list[str]:
        options = {
            "--model": ask.script.model,
            "--tokenizer": ask.hub_name,
            "--url": url,
            "--endpoint-type": "chat",
            "--isl": str(PROMPT_TOKENS),
            "--osl": str(ask.tokens),
            "--extra-inputs": "ignore_eos:true",
            "--request-rate": f"{ask.rate:g}",
            "--arrival-pattern": ask.arrival,
            "--benchmark-duration": f"{ask.seconds:g}",
            "--benchmark-grace-period": "15",
            "--warmup-duration": f"{ask.warmup:g}",
            "--workers-max": "1",
            "--record-processors": "1",
            "--export-level": "summary",
            "--ui": "none",
            "--output-artifact-dir": str(folder),
        }
        flags = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
        pairs = [word for pair in options.items() for word in pair]
        return [str(self.env / "bin" / "aiperf"), "profile", *pairs, *flags]


def read(folder: Path) -> Reported:
    """Raises ToolFailed if there is no result."""
    try:
        result, phases = (json.loads((folder / name).read_text()) for name in (_RESULT, _PHASES))
        return parse(result, phases)
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise ToolFailed(f"no usable result of aiperf: {error!r}") from error


def parse(result: Mapping[str, Any], phases: Mapping[str, Any]) -> Reported:
    """From its summary and the list of its phases. Its inter_token_latency is one mean per request: our
    TPOT (MEASUREMENT 10). Raises KeyError for a name that is missing."""
    measured = next(phase for phase in phases["phases"] if phase["phase_kind"] == "profiling")
    completed = int(measured["successful_request_count"])
    times = Quantiles()
    if completed:
        ttft, tpot = result["time_to_first_token"], result["inter_token_latency"]
        times = Quantiles(ttft["p50"], ttft["p99"], tpot["p50"], tpot["p99"])
    return Reported(
        times,
        completed,
        int(measured["error_request_count"]),
        result["request_throughput"]["avg"] if completed else None,
        span=(int(measured["start_ns"]), int(measured["end_ns"])),
    )
