"""What each tenant has had and what it may have (ENGINE E29).

``Service`` is the virtual token counter of VTC (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024): c_t += (w_in*u at admission + w_out per output token) / weight_t. Prompt tokens that were charged
and not computed after all are refunded; computing a token again costs nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import EngineConfig, TenantConfig
from engine.sched.least import Least
from engine.sched.orders import Tally, Waiting

DEFAULT_TENANT = "default"
MAX_IDLE = 65_536
"""Idle tenants whose counters are kept; who was idle for longest is forgotten first."""


def tenant_config(tenants: Mapping[str, TenantConfig], tenant: str) -> TenantConfig:
    """Its own row, else that of ``default``."""
    return tenants.get(tenant) or tenants.get(DEFAULT_TENANT) or TenantConfig()


def tenant_label(tenants: Mapping[str, TenantConfig], tenant: str) -> str:
    """Its name on metrics: all that have no row are one, or clients could make series without end."""
    return tenant if tenant in tenants else DEFAULT_TENANT


class Service:
    """The counters. A tenant is idle while nothing of it waits; who comes back from there starts no lower
    than the least of those that wait in its rank, or than who was served last if none does."""

    def __init__(self, config: EngineConfig) -> None:
        self._counters: dict[str, float] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._waiting: Counter[str] = Counter()
        self._by_rank: Counter[tuple[int, str]] = Counter()
        self._least: dict[int, Least[str]] = {}
        self._last: dict[int, str] = {}
        self._floor: dict[int, float] = {}
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        """Other weights from now on; what was had remains."""
        self._tenants = config.tenants
        self._input, self._output = config.queue.input_weight, config.queue.output_weight

    def of(self, tenant: str) -> float:
        """c_t."""
        return self._counters.get(tenant, 0.0)

    def weight(self, tenant: str) -> float:
        return tenant_config(self._tenants, tenant).weight

    def cost(self, uncached: float, output: float = 0.0) -> float:
        """What so many tokens count for, for a tenant of weight 1."""
        return self._input * uncached + self._output * output

    def comes(self, entry: Waiting) -> None:
        """It waits now."""
        tenant, rank = entry.tenant, entry.rank
        if not self._waiting[tenant]:
            self._idle.pop(tenant, None)
            self._counters[tenant] = self.start(tenant, rank)
        self._waiting[tenant] += 1
        self._by_rank[rank, tenant] += 1
        if self._by_rank[rank, tenant] == 1:
            least = self._least.setdefault(rank, Least(lambda other: (self.of(other),)))
            least.put(tenant)

    def goes(self, entry: Waiting) -> None:
        """It waits no more, for whatever reason."""
        tenant, rank = entry.tenant, entry.rank
        self._by_rank[rank, tenant] -= 1
        if not self._by_rank[rank, tenant]:
            del self._by_rank[rank, tenant]
            self._least[rank].drop(tenant)
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._idle[tenant] = None
            if len(self._idle) > MAX_IDLE:
                forgotten, _ = self._idle.popitem(last=False)
                del self._counters[forgotten]

    def admitted(self, entry: Waiting, uncached: int) -> None:
        """It goes to a worker, with so much of its prompt to compute that was not charged before."""
        rank = entry.rank
        self._floor[rank] = max(self._floor.get(rank, 0.0), self.of(entry.tenant))
        self._last[rank] = entry.tenant
        self.charge(entry.tenant, uncached)

    def start(self, tenant: str, rank: int) -> float:
        """What its counter would be if a request of it came now."""
        return self.of(tenant) if self._waiting[tenant] else max(self.of(tenant), self._level(rank))

    def charge(self, tenant: str, uncached: int = 0, output: int = 0) -> None:
        """Computed for it; ``uncached`` below 0 is a refund."""
        if tenant not in self._counters:
            return  # forgotten: it will start from the level of the others
        self._counters[tenant] += self.cost(uncached, output) / self.weight(tenant)
        if uncached < 0:
            for rank, least in self._least.items():
                if (rank, tenant) in self._by_rank:
                    least.put(tenant)

    def _level(self, rank: int) -> float:
        """Where who was idle starts. The floor stands where one that waits far behind may not be served."""
        least = self._least[rank].peek() if rank in self._least else None
        reference = self._last.get(rank) if least is None else least
        return max(self._floor.get(rank, 0.0), 0.0 if reference is None else self.of(reference))


class Turn:
    """The turn of a request among those of its rank: ``at`` is what its tenant will have had when ``mine``,
    what of it waits in front, has been served. Tokens as if requests could be divided."""

    def __init__(self, service: Service, tenant: str, rank: int, mine: Tally) -> None:
        cost = service.cost(mine.uncached, mine.output)
        self.at = service.start(tenant, rank) + cost / service.weight(tenant)
        self._service = service
        self._counted: dict[str, float] = {}

    def before(self, other: str, waits: Tally) -> Tally:
        """What of another tenant's waiting requests is served before: what lifts its counter to ``at``."""
        service, counted = self._service, self._counted.get(other, 0.0)
        cost = service.cost(waits.uncached, waits.output)
        behind = max(0.0, (self.at - service.of(other)) * service.weight(other) - counted)
        share = 1.0 if cost <= behind else behind / cost
        self._counted[other] = counted + share * cost
        return waits.part(share)


@dataclass(slots=True)
class _Active:
    requests: int = 0
    room: int = 0


class Caps:
    """What each tenant has on the workers, against what it may have there at a time."""

    def __init__(self, config: EngineConfig) -> None:
        self._active: dict[str, _Active] = {}
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        self._tenants = config.tenants

    def active(self, tenant: str) -> tuple[int, int]:
        """(requests, KV tokens that they may come to hold)."""
        has = self._active.get(tenant, _Active())
        return has.requests, has.room

    def all_active(self) -> Counter[str]:
        """Requests by tenant."""
        return Counter({tenant: has.requests for tenant, has in self._active.items()})

    def allows(self, entry: Waiting) -> bool:
        """False while its tenant is at a cap. What passes a cap by itself alone goes when nothing else of
        its tenant is active: the cap was lowered after it came."""
        has = self._active.get(entry.tenant)
        if has is None:
            return True
        limits = tenant_config(self._tenants, entry.tenant)
        return (limits.max_active is None or has.requests < limits.max_active) and (
            limits.max_kv_tokens is None or has.room + entry.room <= limits.max_kv_tokens
        )

    def starts(self, entry: Waiting) -> None:
        has = self._active.setdefault(entry.tenant, _Active())
        has.requests += 1
        has.room += entry.room

    def ends(self, entry: Waiting) -> None:
        has = self._active[entry.tenant]
        has.requests -= 1
        has.room -= entry.room
        if not has.requests:
            del self._active[entry.tenant]
