"""``guidellm run``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.tool import PROMPT_TOKENS, Ask, Quantiles, Reported, ToolFailed, execute
from loadgen.reference.group import ReferenceServer

_RESULT = "result.json"
_PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Guidellm:
    env: Path
    version: str
    name: str = "guidellm"

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        count = prompts_for(ask)
        write_prompts(folder / _PROMPTS, count, ask.tokens)
        execute(self.command(ask, server.url, folder), {"HF_HUB_OFFLINE": "1"}, folder, ask.core, ask.limit_s)
        return read(folder)

    def command(self, ask: Ask, url: str, folder: Path) -> list[str]:
        lasts = ask.warmup + ask.seconds + ask.cooldown
        profile = f"kind={ask.arrival},rate={ask.rate:g},warmup={ask.warmup:g},cooldown={ask.cooldown:g}"
        options = {
            "--backend": f"kind=openai_http,target={url},model={ask.script.model}",
            "--profile": profile,
            "--constraint": f"kind=max_duration,seconds={lasts:g}",
            "--tokenizer": f"kind=huggingface_auto,model={ask.model}",
            "--data": f"kind=json_file,path={folder / _PROMPTS}",
            "--data-loader": f"kind=pytorch,samples={prompts_for(ask)}",
            "--metrics": "kind=generative,sample_size=0",
            "--output": f"kind=json,path={folder / _RESULT}",
        }
        pairs = [word for pair in options.items() for word in pair]
        return [str(self.env / "bin" / "guidellm"), "run", *pairs, "--disable-console"]


def prompts_for(ask: Ask) -> int:
    """Enough for the whole run, whatever chance makes of the rate, and not many more: they are all made
    before it begins."""
    mean = ask.rate * (ask.warmup + ask.seconds + ask.cooldown)
    return math.ceil(mean + 5 * math.sqrt(mean)) + 20


def write_prompts(path: Path, count: int, tokens: int) -> None:
    """With their lengths, so that nothing needs to be counted later."""
    filler = " ".join(["word"] * (PROMPT_TOKENS - 1))
    lengths = {"prompt_tokens_count": PROMPT_TOKENS, "output_tokens_count": tokens}
    with path.open("w") as file:
        for k in range(count):
            file.write(json.dumps({"prompt": f"{filler} {k}", **lengths}) + "\n")


def read(folder: Path) -> Reported:
    """Raises ToolFailed if there is no result."""
    try:
        return parse(json.loads((folder / _RESULT).read_text()))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ToolFailed(f"no usable result of guidellm: {error!r}") from error


def parse(result: Mapping[str, Any]) -> Reported:
    """From its JSON output. Its inter_token_latency_ms is one mean per request: our TPOT (MEASUREMENT 10);
    its time_per_output_token_ms has TTFT inside. Raises KeyError for a name that is missing."""
    benchmark = result["benchmarks"][0]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    completed = int(totals["successful"])
    times = Quantiles()
    if completed:
        ttft, tpot = (
            metrics[name]["successful"]["percentiles"]
            for name in ("time_to_first_token_ms", "inter_token_latency_ms")
        )
        times = Quantiles(ttft["p50"], ttft["p99"], tpot["p50"], tpot["p99"])
    return Reported(
        times,
        completed,
        int(totals["errored"]),
        metrics["requests_per_second"]["successful"]["mean"],
        span=(round(benchmark["start_time"] * 1e9), round(benchmark["end_time"] * 1e9)),
    )
