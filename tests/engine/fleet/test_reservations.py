"""Loads are the sum of what is in flight, settled exactly once (FLEET F26, case C5, I22)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.ledger import Ledger, Reservation


@settings(max_examples=50)
@given(data=st.data())
def test_the_sum_of_loads_is_what_is_in_flight_after_any_sequence(data: st.DataObject) -> None:
    """Reserve, progress, first token, settle (twice too) in any order: never below 0, and 0 at the end."""
    ledger, alive, number = Ledger(), {}, 0
    for _ in range(data.draw(st.integers(0, 40))):
        act = data.draw(st.sampled_from(["reserve", "progress", "token", "settle", "again"]))
        if act == "reserve":
            number += 1
            shared = tuple(bytes([i]) for i in range(data.draw(st.integers(0, 3))))
            prefill = data.draw(st.integers(1, 500))
            alive[number, 1] = prefill
            whole = len(shared) + data.draw(st.integers(0, 9))
            worker = data.draw(st.integers(0, 2))
            ledger.reserve((number, 1), Reservation(worker, prefill, whole, whole, shared))
        elif alive:
            attempt = data.draw(st.sampled_from(sorted(alive)))
            if act == "progress":
                ledger.progress(attempt, data.draw(st.integers(0, 500)))
            elif act == "token":
                ledger.first_token(attempt, 10)
            else:
                assert ledger.settle(attempt)
                assert not ledger.settle(attempt), "settled exactly once"
                del alive[attempt]
        assert ledger.audit(set(alive)) == []
        assert len(ledger) == len(alive)
    for attempt in list(alive):
        ledger.settle(attempt)
    assert ledger.audit(set()) == []
    loads = [ledger.load(worker) for worker in range(3)]
    assert all(load.requests == load.prefill == load.decode == load.blocks == 0 for load in loads)


def test_prefill_ends_with_the_first_token_and_the_rest_with_the_end() -> None:
    """Progress counts down, the first token takes what is left, and says how much was computed."""
    ledger = Ledger()
    ledger.reserve((1, 1), Reservation(0, prefill=100, decode=9, whole=9))
    load = ledger.load(0)
    assert (load.backlog_requests, load.backlog_tokens) == (1, 100)
    assert ledger.progress((1, 1), left=40) == 60
    assert (load.prefill, load.backlog_requests, load.backlog_tokens) == (40, 0, 0)
    assert ledger.first_token((1, 1), context=120) == 40
    assert (load.prefill, load.running, load.contexts, load.decode) == (0, 1, 120, 9)
    ledger.settle((1, 1))
    assert (load.running, load.contexts, load.decode, load.requests) == (0, 0, 0, 0)


def test_blocks_in_common_are_promised_once() -> None:
    """Two requests of ten blocks with eight in common need twelve."""
    ledger = Ledger()
    common = tuple(bytes([i]) for i in range(8))
    for id in (1, 2):
        ledger.reserve((id, 1), Reservation(0, prefill=1, decode=10, whole=10, digests=common))
    assert ledger.load(0).blocks == 12
    ledger.settle((1, 1))
    assert ledger.load(0).blocks == 10


def test_an_audit_names_what_does_not_add_up() -> None:
    """A reservation whose attempt is gone is reported with its number."""
    ledger = Ledger()
    ledger.reserve((4, 2), Reservation(0, 1, 1, 1))
    assert "(4, 2)" in ledger.audit(set())[0]
    ledger.load(0).requests += 1
    assert "is not the sum" in ledger.audit({(4, 2)})[0]


def test_waiting_counts_until_all_choose_again() -> None:
    """What waits for a full worker counts there, unbound (F29)."""
    ledger = Ledger()
    ledger.wait(0, 100, 8)
    ledger.wait(0, 50, 4)
    assert ledger.waiting(0) == (2, 150, 12)
    ledger.clear_waiting()
    assert ledger.waiting(0) == (0, 0, 0)
