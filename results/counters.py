"""Counter groups: numbers that gates may name beside the metrics, exact for the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.metrics import Kind
from results.run import RunData
from results.stats.distribution import Estimate

MISSES = ("app_reset", "expiry", "boundary", "unexplained")
CACHE_OUTCOMES = ("hit", "cold", "below_minimum", "concurrent", "not_measured", *MISSES)
BUCKETS = ("new", "changed", "policy", "boundary", "expiry", "unexplained", "read", "bonus")

COUNTERS: dict[str, dict[str, Kind]] = {
    "kv": {"leaked_blocks": Kind.COUNT, "usage_mean": Kind.RATIO, "usage_max": Kind.RATIO},
    "invariants": {"checked": Kind.COUNT, "failed": Kind.COUNT, "not_judged": Kind.COUNT},
    "recovery": {"seconds": Kind.LATENCY, "detect_seconds": Kind.LATENCY},
    "engine": {"preemptions": Kind.COUNT, "recomputed_tokens": Kind.COUNT},
    "attribution": {
        "requests": Kind.COUNT,
        "missed_tokens": Kind.COUNT,
        **{f"missed_tokens.{name}": Kind.COUNT for name in MISSES},
        **{f"outcomes.{name}": Kind.COUNT for name in CACHE_OUTCOMES},
        **{f"ledger.{name}": Kind.COUNT for name in BUCKETS},
        "ledger_errors": Kind.COUNT,
        "avoidable_tokens": Kind.COUNT,
        "intentional_tokens": Kind.COUNT,
        "unexplained_share": Kind.RATIO,
    },
}
"""group -> counter -> kind (which decides the unit of its bound)."""


def counters(data: RunData, engine: Mapping[str, Any] | None) -> dict[str, dict[str, Estimate]]:
    """The values of all counters; those that cannot be known carry their reason."""
    return {
        "kv": _kv(data, engine),
        "invariants": _invariants(data),
        "engine": _engine(engine),
        "attribution": _attribution(data.attribution),
    }


def leaked_blocks(audits: list[dict[str, Any]]) -> Estimate:
    """Blocks that nobody can account for in the last audit, over all workers (FLEET I12).

    Of a worker's ``blocks`` each is free, fenced or referenced; while nothing runs, only ballast may be
    referenced. A worker may also say ``leaked_blocks`` itself.
    """
    if not audits:
        return Estimate(None, reason="the target was not audited")
    workers = [w for w in audits[-1].get("workers", []) if isinstance(w, dict)]
    leaks = [_leaked(w) for w in workers]
    if not leaks or None in leaks:
        return Estimate(None, reason="not every worker answered the last audit")
    return Estimate(float(sum(n for n in leaks if n is not None)))


def _leaked(worker: Mapping[str, Any]) -> int | None:
    if "leaked_blocks" in worker:
        return int(worker["leaked_blocks"])
    if not {"blocks", "free", "fenced", "referenced"} <= worker.keys():
        return None
    nowhere = abs(worker["blocks"] - worker["free"] - worker["fenced"] - worker["referenced"])
    idle = worker.get("running") == 0
    kept = worker["referenced"] - worker.get("ballast", 0) if idle else 0
    return int(nowhere + max(0, kept))


def _kv(data: RunData, engine: Mapping[str, Any] | None) -> dict[str, Estimate]:
    usage = ((engine or {}).get("kv") or {}).get("all") or {}
    missing = "the block pool was not scraped"
    return {
        "leaked_blocks": leaked_blocks(data.audits),
        "usage_mean": Estimate(usage.get("mean"), reason=missing),
        "usage_max": Estimate(usage.get("max"), reason=missing),
    }


def _invariants(data: RunData) -> dict[str, Estimate]:
    if data.invariants is None:
        missing = Estimate(None, reason="no invariants were checked")
        return {"checked": missing, "failed": missing, "not_judged": missing}
    verdicts = [str(row.get("verdict")) for row in data.invariants]
    failed, passed = verdicts.count("fail"), verdicts.count("pass")
    numbers = {"checked": failed + passed, "failed": failed, "not_judged": len(verdicts) - failed - passed}
    return {name: Estimate(float(n)) for name, n in numbers.items()}


def _engine(engine: Mapping[str, Any] | None) -> dict[str, Estimate]:
    missing = "no truth of the engine"
    return {
        name: Estimate((engine or {}).get(name), reason=missing)
        for name in ("preemptions", "recomputed_tokens")
    }


def _attribution(rollup: Mapping[str, Any] | None) -> dict[str, Estimate]:
    if rollup is None:
        return {name: Estimate(None, reason="nothing was attributed") for name in COUNTERS["attribution"]}
    outcomes = rollup.get("outcomes", {})
    missed = rollup.get("missed_tokens", {})
    ledger = rollup.get("ledger", {})
    requests = sum(int(n) for n in outcomes.values())
    values: dict[str, float | None] = {
        "requests": requests,
        "missed_tokens": sum(float(missed.get(name, 0)) for name in MISSES),
        "unexplained_share": outcomes.get("unexplained", 0) / requests if requests else None,
        # the ledger's identity is asserted for each request: a roll-up only exists where all hold
        "ledger_errors": rollup.get("ledger_errors", 0 if "ledger" in rollup else None),
        "avoidable_tokens": rollup.get("avoidable_tokens"),
        "intentional_tokens": rollup.get("intentional_tokens"),
    }
    values |= {f"missed_tokens.{name}": float(missed.get(name, 0)) for name in MISSES}
    values |= {f"outcomes.{name}": float(outcomes.get(name, 0)) for name in CACHE_OUTCOMES}
    values |= {f"ledger.{name}": ledger.get(name) for name in BUCKETS}
    return {name: Estimate(value, reason="not in the roll-up") for name, value in values.items()}
