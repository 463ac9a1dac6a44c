"""Who waits in a line is late exactly if nobody takes them out of it in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.agenda import Agenda
from loadgen.line import Line

WAIT = 100
STEP = st.tuples(
    st.integers(0, 60), st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), max_size=3)
)


class Hand:
    """A clock moved by hand, and an alarm that counts how often it is set."""

    now = sets = 0

    def __call__(self) -> int:
        return self.now

    def set(self, due: int) -> None:
        self.sets += 1

    def close(self) -> None: ...


@given(st.lists(STEP, max_size=30))
def test_late_is_who_waited_that_long(steps: list[tuple[int, list[int], list[int]]]) -> None:
    """Each once, in the order of joining, at the first look after its time; whoever left is not."""
    hand, late = Hand(), list[tuple[int, int]]()
    agenda = Agenda([], 0, hand, lambda *_: None)
    line = Line(agenda, WAIT, lambda who, now: late.append((who, now)))
    agenda.begin(hand)
    waiting: dict[int, int] = {}
    for passed, joining, leaving in steps:
        hand.now += passed
        expected = [(who, hand.now) for who, due in waiting.items() if due <= hand.now]
        late.clear()
        agenda.run()
        assert late == expected
        for who, _ in late:
            del waiting[who]
        for who in leaving:
            line.leave(who)
            waiting.pop(who, None)
        for who in joining:
            if who not in waiting:
                line.join(who, hand.now)
                waiting[who] = hand.now + WAIT


def test_one_who_is_late_may_take_others_out_and_join_again() -> None:
    """As a request does that times out and is looked at again."""
    hand, late = Hand(), list[str]()

    def be_late(who: str, now: int) -> None:
        late.append(who)
        if who == "a":
            line.leave("b")
            line.join("d", now)

    agenda = Agenda([], 0, hand, lambda *_: None)
    line = Line(agenda, WAIT, be_late)
    agenda.begin(hand)
    for who in "abc":
        line.join(who, 0)
    for hand.now in (WAIT, 2 * WAIT - 1, 2 * WAIT):
        agenda.run()
        late.append("|")
    assert "".join(late) == "ac||d|"


def test_thousands_who_come_and_go_do_not_touch_the_agenda() -> None:
    """The alarm is set for the first of them only."""
    hand, late = Hand(), list[int]()
    agenda = Agenda([], 0, hand, lambda *_: None)
    line = Line(agenda, WAIT, lambda who, now: late.append(who))
    agenda.begin(hand)
    for k in range(10_000):
        line.join(k, 0)
        line.leave(k)
    assert hand.sets == 1
    hand.now = WAIT
    agenda.run()
    assert (late, hand.sets) == ([], 1)
