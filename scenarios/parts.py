"""What the other parts need to know of a scenario, in their own terms. Pure."""

from __future__ import annotations

from dataclasses import fields

from engine.config import ClassConfig, EngineConfig
from loadgen.arrivals.concurrency import Concurrency
from loadgen.job import TargetJob
from loadgen.plan import Load
from loadgen.rules import Rules
from results.judging import ClassGoal, Service
from scenarios import traces
from scenarios.schema import ClassSpec, EngineTarget, Scenario, UrlTarget

_HISTOGRAM_OF = {"ttft": "ttft", "ttft_sched": "ttft", "itl": "itl", "e2e": "e2e", "e2e_sched": "e2e"}


def engine_config(scenario: Scenario) -> EngineConfig:
    """The engine's configuration, with the scenario's classes and a bucket bound at each SLO (O5).

    Requests of other clients go under ``default``. Raises ValueError if the target is not our engine.
    """
    if not isinstance(scenario.target, EngineTarget):
        raise ValueError("the scenario's target is a URL: there is no engine to configure")
    engine = scenario.target.engine
    own = {f.name: getattr(engine, f.name) for f in fields(engine)}
    classes = {name: _class(spec) for name, spec in scenario.classes.items()}
    return EngineConfig(**own, classes={"default": ClassConfig()} | classes, slo_bounds=_slo_bounds(scenario))


def _class(spec: ClassSpec) -> ClassConfig:
    usual = ClassConfig().default_output
    most = spec.limits.output
    return ClassConfig(
        rank=spec.rank,
        max_input=spec.limits.input,
        max_output=most,
        max_total=spec.limits.total,
        default_output=spec.default_output or (usual if most is None else min(usual, most)),
        deadline=spec.deadline,
        retention=spec.retention,
        max_queued=spec.queued.requests,
        max_queued_tokens=spec.queued.tokens,
    )


def _slo_bounds(scenario: Scenario) -> dict[str, tuple[float, ...]]:
    bounds: dict[str, set[float]] = {}
    for spec in scenario.classes.values():
        for metric, bound in spec.slo.bounds().items():
            if metric in _HISTOGRAM_OF:
                bounds.setdefault(_HISTOGRAM_OF[metric], set()).add(bound)
    return {name: tuple(sorted(found)) for name, found in sorted(bounds.items())}


def loads(scenario: Scenario) -> tuple[Load, ...]:
    """The scenario's loads as the plan takes them: each with the rank of its class."""
    return tuple(
        Load(
            load.class_,
            load.arrives,
            load.works,
            load.tenant,
            scenario.classes[load.class_].rank,
            tenants=load.shares(),
            adapters=load.adapters,
        )
        for load in traces.seeded(scenario).load
    )


def goals(scenario: Scenario) -> dict[str, ClassGoal]:
    """What a request of each class must do to be good. One closed loop makes a closed loop of its class."""
    closed = {load.class_ for load in scenario.load if isinstance(load.arrives, Concurrency)}
    return {
        name: ClassGoal(
            rank=spec.rank,
            slo=spec.slo.bounds(),
            finish=spec.checks.finish,
            exact_output=spec.checks.exact_output,
            open_loop=name not in closed,
            cap=None if spec.cap is None else spec.cap.in_flight,
        )
        for name, spec in scenario.classes.items()
    }


def service(scenario: Scenario) -> Service | None:
    """How our own engine counts what tenants are served (ENGINE E29); None of any other target."""
    if not isinstance(scenario.target, EngineTarget):
        return None
    engine = scenario.target.engine
    weights = {name: tenant.weight for name, tenant in engine.tenants.items()}
    return Service(engine.queue.input_weight, engine.queue.output_weight, weights)


def replicas(scenario: Scenario) -> int:
    """As many as there are meant to be."""
    target = scenario.target
    return target.engine.workers if isinstance(target, EngineTarget) else target.replicas


def deadlines(scenario: Scenario) -> dict[str, float]:
    """Seconds from a request's arrival, by class, of the classes that have a deadline."""
    return {name: spec.deadline for name, spec in scenario.classes.items() if spec.deadline is not None}


def whole(scenario: Scenario) -> tuple[str, ...]:
    """The classes whose answers are not streamed."""
    return tuple(name for name, spec in scenario.classes.items() if not spec.stream)


def target_job(target: UrlTarget) -> TargetJob:
    """A foreign endpoint as the load process takes it."""
    names = ("model", "key_env", "key_header", "strict", "temperature")
    options = {name: getattr(target, name) for name in names} | {"headers": dict(target.headers)}
    return TargetJob(target.url, target.dialect, options | dict.fromkeys(target.accepts, True), target.ca)


def client_rules(scenario: Scenario) -> Rules:
    """When the client gives up, holds back or tries again."""
    caps = {name: spec.cap for name, spec in scenario.classes.items() if spec.cap is not None}
    return Rules(scenario.timeouts, scenario.client.retries, caps)
