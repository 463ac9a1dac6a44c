"""The ``client`` block of summary.json: the verdict on the load generator, and all that it rests on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from results.run import RunData
from results.validity import Health


def client_block(client: Health, data: RunData) -> dict[str, Any]:
    """Verdict, rows H1..H12 with their limits, and the error bound of this run's own stamps."""
    signals = client.signals
    block: dict[str, Any] = {
        "verdict": client.verdict,
        "rows": client.rows,
        "limit_a": client.limit_a,
        "limits": asdict(data.judging.limits),
        "skew_us": round(signals.skew_s * 1e6, 3),
        "clock_faults": signals.clock_faults,
    }
    if signals.clock_faults:
        block["clock_faults_reason"] = signals.clock_fault
    if not data.judging.virtual:
        block["co_located"] = bool(data.manifest.get("co_located"))
        block["processes"] = [_process(one) for one in data.signals.get("processes") or ()]
    bound = client.error_bound
    for name, value, why in (
        ("error_bound_us", None if bound is None else round(bound * 1e6, 3), _why_no_bound(client)),
        ("stamp", _stamp(signals.kernel_share), "no answer was read"),
        ("kernel_share", signals.kernel_share, "no answer was read"),
        ("coalesced_share", signals.coalesced_share, "no token event came"),
        ("conn_new_share", signals.conn_new_share, "no connection was made"),
        ("hidden_retries", signals.hidden_retries, signals.missing.get("H10", "not measured")),
    ):
        block[name] = value
        if value is None:
            block[f"{name}_reason"] = why
    return block


def _stamp(kernel_share: float | None) -> str | None:
    """Whose receive stamps the window's latencies rest on."""
    if kernel_share is None:
        return None
    return "kernel" if kernel_share == 1 else "mixed" if kernel_share else "user"


def _why_no_bound(client: Health) -> str:
    if client.signals.clock_faults:
        return "the stamps contradict each other"
    unknown = [rule for rule in ("H1", "H2") if client.rows[rule]["value"] is None]
    return f"{' and '.join(unknown)} not measured"


_OF_PROCESS = (
    "loop_lag_p99_ns",
    "loop_lag_max_ns",
    "gc_pause_max_ns",
    "cpu_ratio",
    "clerk_cpu_s",
    "bodies_late",
    "lost",
)


def _process(signals: dict[str, Any]) -> dict[str, Any]:
    """One load process: its number, and what it measured of itself (null = it did not say)."""
    found = {name: signals.get(name) for name in ("process", *_OF_PROCESS)}
    if any(value is None for name, value in found.items() if name != "bodies_late"):  # older runs lack that
        found["reason"] = signals.get("reason") or "the load process did not report it"
    return found
