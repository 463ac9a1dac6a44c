"""What the gateway says about itself: gauges, state, and the invariants with their evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engine.fleet.gateway import Gateway
from engine.fleet.health import State, WorkerHealth
from engine.fleet.run import Stage

WORKER_RULES = tuple(f"K{i}" for i in range(1, 10))


def set_gauges(gateway: Gateway, now: int) -> None:
    """Make every ``headrace_router_`` and ``headrace_fleet_`` gauge true at ``now`` (E55)."""
    meter, dispatcher = gateway.meter, gateway.dispatcher
    states = {worker: shown_state(health, now) for worker, health in gateway.health.items()}
    for worker, health in gateway.health.items():
        name = str(worker)
        for state in State:
            here = int(states[worker] is state)
            meter.set("headrace_router_worker_state", here, worker=name, state=state.value)
        age = (now - health.seen) / 1e9 if health.seen is not None else 0.0
        meter.set("headrace_router_heartbeat_age_seconds", age, worker=name)
        meter.set("headrace_router_reserved_blocks", dispatcher.ledger.load(worker).decode, worker=name)
    counts = Counter(states.values())
    for state in State:
        meter.set("headrace_fleet_replicas", counts[state], state=state.value)
    meter.set("headrace_router_index_keys", len(dispatcher.events), kind="event")
    meter.set("headrace_router_index_keys", len(dispatcher.predicted), kind="predicted")
    _queue_gauges(gateway, now)


def _queue_gauges(gateway: Gateway, now: int) -> None:
    meter, queue = gateway.meter, gateway.dispatcher.queue
    for class_ in gateway.config.classes:
        waits = queue.of_class(class_)
        meter.set("headrace_router_queue_requests", waits.requests, class_=class_)
        meter.set("headrace_router_queue_tokens", waits.tokens, class_=class_)
    meter.set("headrace_router_queue_limit", gateway.config.queue.max_requests, unit="requests")
    meter.set("headrace_router_queue_limit", gateway.config.queue.max_tokens, unit="tokens")
    oldest = queue.oldest()
    age = (now - oldest.arrived) / 1e9 if oldest else 0.0
    meter.set("headrace_router_oldest_waiting_seconds", age)


def shown_state(health: WorkerHealth, now: int) -> State:
    """The one state that is shown: an open breaker takes a worker out as an ejection does."""
    tripped = health.breaker.open_until is not None and now < health.breaker.open_until
    return State.EJECTED if tripped and health.state is State.IN_ROTATION else health.state


def state(gateway: Gateway, processes: Sequence[Mapping[str, Any]], now: int) -> dict[str, Any]:
    """Workers, queue and requests as they are now; ``processes`` is what the pool describes."""
    by_worker = {int(process["worker"]): process for process in processes}
    return {
        "config_id": gateway.lives.config_id,
        "workers": [
            {**by_worker.get(worker, {}), **_worker_state(gateway, worker, now)} for worker in gateway.health
        ],
        "adapters": gateway.adapters.state(),
        "queue": {"requests": len(gateway.dispatcher.queue), "tokens": gateway.dispatcher.queue.tokens},
        "tenants": _tenants(gateway),
        "requests": [
            {
                "id": run.ask.client_id,
                "gateway_id": run.id,
                "class": run.entry.class_,
                "stage": run.stage.value,
                "attempt": run.attempt,
                "worker": run.worker if run.stage is Stage.DISPATCHED else None,
                "generated": run.generated,
                "held": run.held,
            }
            for run in gateway.lives.runs.values()
        ],
    }


def _tenants(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """Of each tenant that has requests here: what waits, what is with workers, what it has had (E29)."""
    queue, caps = gateway.dispatcher.queue, gateway.dispatcher.caps
    rows = {}
    for tenant in sorted({run.entry.tenant for run in gateway.lives.runs.values()}):
        waits, (active, kv_tokens) = queue.of_tenant(tenant), caps.active(tenant)
        rows[tenant] = {
            "queued": waits.requests,
            "queued_tokens": waits.tokens,
            "active": active,
            "kv_tokens": kv_tokens,
            "service": queue.service.of(tenant),
        }
    return rows


def _worker_state(gateway: Gateway, worker: int, now: int) -> dict[str, Any]:
    health, load = gateway.health[worker], gateway.dispatcher.ledger.load(worker)
    beat = health.heartbeat
    return {
        "worker": worker,
        "state": shown_state(health, now).value,
        "reason": health.reason,
        "since": health.since,
        "incarnation": health.incarnation,
        "epoch": beat.epoch if beat else (health.hello.epoch if health.hello else None),
        "step": beat.step if beat else None,
        "requests": load.requests,
        "prefill_tokens": load.prefill,
        "reserved_blocks": load.decode,
        "free_blocks": beat.load.free_blocks if beat else None,
        "disk": _disk_state(gateway, beat.metrics if beat else {}),
    }


def _disk_state(gateway: Gateway, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fault that its disk was told to have, and the moves to and from it that have failed in this life;
    None without a disk tier."""
    if gateway.config.cache.tiers.disk is None:
        return None
    lost = {labels[0]: count for labels, count in metrics.get("headrace_engine_failed_moves_total", ())}
    return {
        "fault": gateway.disk_fault,
        "spills_lost": lost.get("spill", 0),
        "fetches_lost": lost.get("fetch", 0),
    }


def audited(worker: int, audit: Mapping[str, Any] | None) -> dict[str, Any]:
    """A worker's row of the audit. Blocks that are still held while it has no request are leaked; while
    it has some, nobody can say."""
    if audit is None:
        return {"worker": worker, "answered": False}
    idle = not audit["waiting"] and not audit["running"]
    leaked = {"leaked_blocks": audit["referenced"] + audit["fenced"]} if idle else {}
    return {"worker": worker, "answered": True, **leaked, **audit}


def invariants(gateway: Gateway, audits: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """I2, I22 and K9 of the gateway, K1 to K9 of the workers that answered (worker -> its audit)."""
    lives, dispatcher = gateway.lives, gateway.dispatcher
    in_flight = {run.key for run in lives.runs.values() if run.stage is Stage.DISPATCHED}
    balance = lives.admitted - lives.terminal - len(lives.runs)
    counted = f"admitted {lives.admitted}, terminal {lives.terminal}, in flight {len(lives.runs)}"
    wrong = dispatcher.ledger.audit(in_flight)
    queued = {run.id for run in lives.runs.values() if run.stage is Stage.QUEUED}
    if queued != {entry.id for entry in dispatcher.queue}:
        wrong.append("the queue does not hold exactly the requests that wait")
    wrong += dispatcher.queue.audit()
    active = Counter(run.entry.tenant for run in lives.runs.values() if run.stage is Stage.DISPATCHED)
    counted_active = dispatcher.caps.all_active()
    if active != counted_active:
        wrong.append(f"active by tenant: {dict(counted_active)} is counted, {dict(active)} are with workers")
    rows = [
        {"id": "I2", "ok": balance == 0, "evidence": counted},
        {
            "id": "I22",
            "ok": not wrong,
            "evidence": "; ".join(wrong) or f"{len(in_flight)} reservations, as many attempts in flight",
        },
    ]
    for rule in WORKER_RULES:
        broken = [
            f"worker {worker}: {text}"
            for worker, audit in audits.items()
            for text in audit["violations"]
            if text.split(":")[0] == rule
        ]
        ok: bool | None = not broken if audits else None
        if rule == "K9" and balance != 0:
            ok, broken = False, [*broken, f"gateway: {counted}"]
        evidence = "; ".join(broken) or f"{len(audits)} workers audited"
        rows.append({"id": rule, "ok": ok, "evidence": evidence})
    return rows
