"""The names of policies: in the configuration's types, in the help, and in the tables behind them."""

from typing import get_args

from engine.config import POLICIES, Admission, Eviction, Order, Preemption, Routing
from engine.fleet.router import ROUTINGS
from engine.kv.eviction import EVICTIONS
from engine.sched.admission import ADMISSIONS
from engine.sched.controls import CHOICES
from engine.sched.orders import ORDERS


def test_every_policy_name_is_typed_explained_and_implemented():
    """A scenario can name exactly the policies that exist, and `bench list` explains each."""
    tables = {
        "admission.policy": (Admission, ADMISSIONS),
        "queue.order": (Order, ORDERS),
        "preemption": (Preemption, CHOICES["preemption"]),
        "router.policy": (Routing, ROUTINGS),
        "cache.eviction": (Eviction, EVICTIONS),
    }
    assert set(POLICIES) == set(tables)
    for key, (literal, table) in tables.items():
        assert set(get_args(literal)) == set(POLICIES[key]) == set(table), key
