from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import ClassConfig, EngineConfig
from engine.config_io import config_from_dict, config_to_dict, read_config, write_config
from engine.messages import (
    Cancel,
    Clear,
    Done,
    Heartbeat,
    Hello,
    KvEvent,
    KvEvents,
    Load,
    StepTokens,
    Submit,
    TokensOut,
)
from engine.plain import PlainError
from engine.request import Bias, Finish, Logprob, Miss, MissReason, Request, Sampling, WorkerTruth
from engine.wire import MAX_FRAME, Frames, WireError, decode, encode

REQUEST = Request(
    1,
    array("I", [1, 2, 4_000_000_000]),
    b"root",
    (b"a" * 16, b"b" * 16),
    10,
    client_id="c",
    sampling=Sampling(0.5, 7, True, logit_bias=(Bias(3, -1.5),), stop_ids=(5, 6), logprobs=2),
    session=None,
    deadline=12,
)
MESSAGES = [
    Submit(REQUEST),
    Cancel(3, Finish.STOP),
    Cancel(3, Finish.STOP, 1),
    Hello(0, "i", 1, 100, 16, 512),
    TokensOut(1, 1, (1, 2)),
    TokensOut(1, 1, (3,), 2, (Logprob(3, -0.5, (3, 4), (-0.5, -1.0)),)),
    TokensOut(1, 1, (), 2, finish=Finish.LENGTH),
    StepTokens((1, 2), (1, 3), (0, 2), (7, 8), {1: (Logprob(8, -0.5, (8,), (-0.5,)),)}),
    Done(1, 1, Finish.LENGTH, WorkerTruth(misses=[Miss(MissReason.BELOW_BLOCK, 0, 1, 3)])),
    Heartbeat("i", 1, 2, None, "ready", Load(running=1), {"x": [[["a"], 1]]}),
    KvEvents(1, 2, (KvEvent("stored", (b"x",), b"p"), KvEvent("cleared"))),
    Clear(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message):
    """What is decoded equals what was encoded, types included."""
    assert Frames().feed(encode(message)) == [message]


@given(st.lists(st.integers(1, 400)))
def test_frames_are_found_for_every_cut(sizes):
    """However the bytes arrive, the same messages come out in order."""
    stream = b"".join(encode(message) for message in MESSAGES)
    frames, out, at = Frames(), [], 0
    for size in [*sizes, len(stream)]:
        out += frames.feed(stream[at : at + size])
        at += size
    assert out == MESSAGES


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x92\xa3Foo\x80", b"\x92\xa6Cancel\x80", b"\x91\x01"])
def test_what_is_no_message_is_refused(body):
    """Garbage raises WireError, never something else."""
    with pytest.raises(WireError):
        decode(body)


def test_an_absurd_length_is_refused():
    """A frame length beyond the bound is refused before anything is kept for it."""
    with pytest.raises(WireError, match="longer"):
        Frames().feed((MAX_FRAME + 1).to_bytes(4, "big"))


def test_a_configuration_survives_its_file(tmp_path):
    """Writing and reading a configuration gives an equal one."""
    config = EngineConfig(
        workers=3, classes={"chat": ClassConfig(deadline=2.5)}, slo_bounds={"ttft": (0.3, 1.0)}
    )
    write_config(tmp_path / "engine.json", config)
    assert read_config(tmp_path / "engine.json") == config
    assert config_from_dict({}) == EngineConfig()


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"scheduler": {"max_runing": 3}}, r"scheduler\.max_runing: unknown key \(did you mean max_running"),
        ({"scheduler": {"max_running": "3"}}, r"scheduler\.max_running: expected int, not '3'"),
        ({"preemption": "park"}, "preemption: 'park' is none of recompute, swap, none"),
        ({"workers": True}, "workers: expected int, not True"),
        ({"classes": {"chat": {"rank": []}}}, r"classes\.chat\.rank: expected int"),
        ({"memory": 3}, "memory: expected a mapping"),
    ],
)
def test_a_wrong_configuration_says_where(plain, words):
    """Each mistake is refused with the path of keys to it."""
    with pytest.raises(PlainError, match=words):
        config_from_dict(plain)
    assert config_to_dict(EngineConfig())["workers"] == 1


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"memory": {"kv_blocks": 0}}, "memory.kv_blocks: at least 1, not 0"),
        ({"scheduler": {"max_running": 0}}, "scheduler.max_running: at least 1, not 0"),
        ({"admission": {"kv_headroom": 1.5}}, "admission.kv_headroom: a share is at most 100 %, not 150%"),
        ({"health": {"eject_after": 0}}, "health.eject_after: a time longer than 0s, not 0 s"),
        ({"router": {"decode_weight": float("nan")}}, "router.decode_weight: at most 1,000,000,000, not nan"),
    ],
)
def test_a_value_with_which_no_engine_works_is_refused(plain, words):
    """What would wait for ever, or quietly mean something else, ends the start with its place."""
    with pytest.raises(PlainError) as refused:
        config_from_dict(plain)
    assert str(refused.value) == words
