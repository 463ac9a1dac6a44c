"""What is due is done in time order, never early; the alarm is always set for what is next."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.agenda import SPELL_NS, Agenda
from loadgen.plan import Shot

TIME = st.integers(0, 1000)


class Hand:
    """A clock moved by hand, and the alarm that is set on it."""

    def __init__(self) -> None:
        self.now = 0
        self.due: int | None = None
        self.closed = False

    def __call__(self) -> int:
        return self.now

    def set(self, due: int) -> None:
        assert not self.closed
        self.due = due

    def close(self) -> None:
        self.due, self.closed = None, True


def shot(id: int, due: int) -> Shot:
    return Shot(id, "c", "window", id, 0, (), 1, 1, due_ns=due)


@given(st.lists(TIME, max_size=10), st.lists(st.tuples(TIME, TIME), max_size=10), st.lists(TIME, max_size=12))
def test_everything_is_done_once_it_is_due_and_in_order(
    planned: list[int], later: list[tuple[int, int]], rings: list[int]
) -> None:
    """Whenever the alarm rings, early, late or in vain: all that is due, nothing that is not, and the alarm
    stands at the first of what is left. ``later``: (when it is due, how long after it another one is)."""
    hand, done = Hand(), list[tuple[int, int]]()
    agenda = Agenda(
        [shot(k, due) for k, due in enumerate(planned)], 0, hand, lambda _, due, now: done.append((due, now))
    )
    left = [*planned, *(due for due, _ in later), *(due + more for due, more in later)]
    for due, more in later:

        def do(now: int, due: int = due, more: int = more) -> None:
            done.append((due, now))
            agenda.at(due + more, lambda now: done.append((due + more, now)))

        agenda.at(due, do)
    agenda.begin(hand)
    for ring in [*sorted(rings), 3000]:
        hand.now = max(hand.now, ring)
        before = len(done)
        agenda.run()
        fired = [due for due, _ in done[before:]]
        assert fired == sorted(due for due in left if due <= hand.now)
        for due in fired:
            left.remove(due)
        known = [*(due for due in left if due in planned), *(due for due, _ in later if due in left)]
        if known:
            assert hand.due is not None
            assert hand.due <= min(known)
    assert left == []
    assert all(due <= now for due, now in done)


@given(st.lists(TIME, max_size=10), st.lists(TIME, max_size=3), TIME, st.integers(0, 12))
def test_what_is_planned_is_known_however_far_ahead(
    planned: list[int], others: list[int], now: int, skip: int
) -> None:
    """First turns in order of time, without those that were fired; what else is to be done does not count."""
    t0, hand, fired = 5000, Hand(), list[int]()
    shots = [shot(k, due) for k, due in enumerate(planned)]
    later = replace(shot(99, 0), due_ns=None)
    agenda = Agenda([*shots, later], t0, hand, lambda shot, due, now: fired.append(due))
    for due in others:
        agenda.at(t0 + due, lambda now: None)
    agenda.begin(hand)
    hand.now = t0 + now
    agenda.run()
    assert len(fired) == sum(due <= now for due in planned)
    left = [t0 + due for due in sorted(planned) if due > now]
    assert agenda.planned(skip) == (left[skip] if skip < len(left) else None)
    assert agenda.planned() == (left[0] if left else None)
    agenda.clear()
    assert agenda.planned(skip) is agenda.planned() is None


def test_who_cannot_keep_up_still_hears() -> None:
    """Where each thing takes longer than there is time, the loop gets its turn after a spell, and the alarm
    is set to go on at once."""
    hand, done = Hand(), list[int]()

    def slow(shot: Shot, due: int, now: int) -> None:
        done.append(shot.id)
        hand.now += SPELL_NS // 10

    agenda = Agenda([shot(k, k) for k in range(100)], 0, hand, slow)
    agenda.begin(hand)
    hand.now = 50
    agenda.run()
    assert len(done) == 10
    assert hand.due == 10
    while len(done) < 100:
        agenda.run()
    assert done == list(range(100))


def test_what_is_closed_sets_no_alarm() -> None:
    """What is put on it afterwards is never done, and disturbs nobody."""
    hand = Hand()
    agenda = Agenda([shot(0, 5)], 0, hand, lambda *_: None)
    agenda.begin(hand)
    assert hand.due == 5
    agenda.close()
    agenda.at(1, lambda _: None)
    agenda.close()
    assert hand.due is None
