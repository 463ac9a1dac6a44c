"""What the judge needs beside the records; stored with them, so that any run can be judged again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClassGoal:
    """What a class of requests must do. ``slo`` maps a metric of MEASUREMENT 3 to its bound in s."""

    rank: int = 0
    slo: dict[str, float] = field(default_factory=dict)
    finish: tuple[str, ...] | None = None
    """Finish reasons that count as correct; None = any."""
    exact_output: bool = False
    """Correct only if n_out equals what was asked."""
    open_loop: bool = True
    """Due times do not depend on answers. Else only the send clock says anything (MEASUREMENT 3)."""
    cap: int | None = None
    """At most so many in flight, as declared; then only the schedule clock does (C17)."""
    planned: int | None = None
    """Requests planned for the window, for warnings before the run."""


@dataclass(frozen=True, slots=True)
class Users:
    """Those of a closed loop that must not come to the end of the plan: the id of the ``last`` turn that is
    planned for each, and how long they think before they ask again."""

    last: tuple[int, ...]
    think_ns: int


@dataclass(frozen=True, slots=True)
class Service:
    """How the target counts what a tenant was served (ENGINE E29): weights of a computed prompt token and of
    an output token, and of each tenant; who has no row has that of ``default``."""

    input: float
    output: float
    weights: dict[str, float] = field(default_factory=dict)

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, self.weights.get("default", 1.0))


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The limits of MEASUREMENT 8; times in s, shares as ratios. Raises ValueError for senseless ones."""

    latency_floor: float = 0.005
    """A = max(``latency_floor``, ``latency_share`` x the smallest class median of ttft)."""
    latency_share: float = 0.05
    min_class_n: int = 30
    """Completed requests from which a class's median counts."""
    pool_wait: float = 0.001
    cpu: float = 0.8
    steal: float = 0.05
    offered: float = 0.005
    offered_degraded: float = 0.02
    little: float = 0.001
    little_degraded: float = 0.02

    def __post_init__(self) -> None:
        if self.latency_floor <= 0:
            raise ValueError("latency_floor must be longer than 0s: no client is on time to the ns")
        if self.min_class_n < 1:
            raise ValueError(f"min_class_n must be at least 1, not {self.min_class_n}")
        for name in ("offered", "little"):
            valid, degraded = getattr(self, name), getattr(self, f"{name}_degraded")
            if degraded < valid:
                raise ValueError(f"{name}_degraded ({degraded:g}) is below {name} ({valid:g})")


@dataclass(frozen=True, slots=True)
class Judging:
    """The judge's side of a scenario. Times in ns since t0."""

    scenario: str
    seed: int
    classes: dict[str, ClassGoal]
    window: tuple[int, int]
    """[a, b) of due times that are judged (MEASUREMENT C21)."""
    gates: tuple[str, ...] = ()
    question: str = ""
    virtual: bool = False
    plan_digest: str = ""
    cache: Literal["cold", "warm", "as_is"] = "cold"
    own_engine: bool = False
    timeouts: dict[str, float] = field(default_factory=dict)
    """s: connect, first_token, between_tokens, total (MEASUREMENT C28)."""
    limits: HealthLimits = HealthLimits()
    users: dict[str, Users] = field(default_factory=dict)
    """By class, of closed loops without a number of ``requests``."""
    demand: dict[str, dict[str, float]] = field(default_factory=dict)
    service: Service | None = None
    """Of our own engine."""
    price: float | None = None
    """Of one replica for one s, in whatever currency; None = the scenario says none."""
    replicas: int = 1
    """As the scenario has them; the target may tell otherwise."""
    t_rec: int = 10 * SECOND
    """A fault's span goes on for so long after its heal (FLEET F62)."""
    t_rec_unhealed: int = 30 * SECOND
    """The same from the injection, where nothing heals."""
    strict: bool = False
    allow_inconclusive: bool = False

    def rank(self, name: str) -> int:
        """Of a class; undeclared classes come last."""
        goal = self.classes.get(name)
        return 1 << 30 if goal is None else goal.rank

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Judging:
        """Inverse of ``asdict``; keys of a newer version are ignored."""
        known = {f.name for f in fields(Judging)}
        values = {k: v for k, v in data.items() if k in known}
        values["window"] = (int(data["window"][0]), int(data["window"][1]))
        values["gates"] = tuple(data.get("gates", ()))
        values["classes"] = {name: _goal(goal) for name, goal in data["classes"].items()}
        values["limits"] = _limits(data.get("limits", {}))
        values["users"] = {
            name: Users(tuple(users["last"]), users["think_ns"])
            for name, users in data.get("users", {}).items()
        }
        if (service := data.get("service")) is not None:
            values["service"] = Service(service["input"], service["output"], dict(service["weights"]))
        return Judging(**values)

    @staticmethod
    def from_json(text: str) -> Judging:
        return Judging.from_dict(json.loads(text))


def _goal(data: dict[str, Any]) -> ClassGoal:
    known = {f.name for f in fields(ClassGoal)}
    values = {k: v for k, v in data.items() if k in known}
    if values.get("finish") is not None:
        values["finish"] = tuple(values["finish"])
    return ClassGoal(**values)


def _limits(data: dict[str, Any]) -> HealthLimits:
    known = {f.name for f in fields(HealthLimits)}
    return HealthLimits(**{k: v for k, v in data.items() if k in known})
