"""The shipped scenarios in virtual time, through the whole of headrace."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.model.words import WordsTokenizer
from engine.worker import Worker
from headrace import prepare
from headrace.console import Silent, Tick
from headrace.errors import TargetFailed, UsageFailed
from headrace.rejudge import explain_run, rejudge
from headrace.run import Options, run_scenario
from headrace.verdict import Outcome
from loadgen.plan import Plan
from loadgen.text import Message, Prompter, TextMaker
from results.attribution.verdict import Attribution, read_parquet
from results.recordfile import RECORD_SCHEMA

QUICKSTART, RESET = Path("quickstart"), Path("accidental-reset")


def run(scenario: Path, out: Path) -> Outcome:
    return run_scenario(scenario, Options(out=out, virtual=True), Silent())


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(QUICKSTART, tmp_path_factory.mktemp("quickstart") / "run")


@pytest.fixture(scope="module")
def reset(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(RESET, tmp_path_factory.mktemp("reset") / "run")


def verdicts(outcome: Outcome) -> list[Attribution]:
    return read_parquet(outcome.folder / "attribution.parquet")


def test_one_seed_gives_one_summary(quickstart: Outcome, tmp_path: Path) -> None:
    """The same scenario again: summary.json has the very same bytes."""
    again = run(QUICKSTART, tmp_path / "again")
    first, second = (each.folder / "summary.json" for each in (quickstart, again))
    assert first.read_bytes() == second.read_bytes()


def test_the_quickstart_passes(quickstart: Outcome) -> None:
    """Exit 0, each fault injected, proven and healed without an error, all invariants hold."""
    assert quickstart.last_line == {
        "verdict": "pass",
        "client": "valid",
        "interrupted": False,
        "exit": 0,
        "run": str(quickstart.folder),
    }
    faults = [json.loads(line) for line in (quickstart.folder / "faults.jsonl").read_text().splitlines()]
    assert {fault["id"] for fault in faults} == {"rush", "hangup", "crash"}
    for fault in faults:
        assert fault["error"] is None
        assert fault["injected"] <= fault["proven"] <= fault["healed"]
    assert quickstart.summary["invariants"]["failed"] == []
    assert quickstart.summary["invariants"]["checked"] >= 18
    rows = quickstart.summary["client"]["rows"]
    assert rows["H9"]["value"] == rows["H10"]["value"] == 0


@pytest.mark.parametrize("name", ["closed-loop", "length-matrix", "hang-ups"])
def test_shipped_scenarios_pass(name: str, tmp_path: Path) -> None:
    """Exit 0: what is shipped holds on its own target, its cache contract too."""
    outcome = run(Path(name), tmp_path / "run")
    assert (outcome.last_line["verdict"], outcome.last_line["exit"]) == ("pass", 0)
    assert outcome.summary["cache"]["contract"]["state"] == "held"


@pytest.mark.parametrize("name", ["quickstart", "reset"])
def test_every_prompt_token_is_in_one_bucket(name: str, request: pytest.FixtureRequest) -> None:
    """Each ledger sums to its prompt; what a miss missed is what stands behind read; the roll-up is the
    sum of them, and the engine's truth agrees on what was read."""
    outcome: Outcome = request.getfixturevalue(name)
    truth = {row["id"]: row for row in pq.read_table(outcome.folder / "truth.parquet").to_pylist()}
    measured = [a for a in verdicts(outcome) if a.ledger is not None]
    assert len(measured) >= 6
    for a in measured:
        ledger = a.ledger
        assert ledger is not None
        assert ledger.total == a.prompt
        hits = sum(truth[a.id][f"hit_{tier}"] for tier in ("device", "host", "disk"))
        assert ledger.read + ledger.bonus == a.cached == hits
        if a.is_miss:
            assert a.missed == ledger.changed + ledger.policy + ledger.lost
    missed = sum(a.missed or 0 for a in measured if a.is_miss)
    assert sum(outcome.summary["attribution"]["missed_tokens"].values()) == missed
    assert outcome.summary["attribution"]["score"]["token_agreement"] == 1.0


def prompt_of(plan: Plan, shot: int, nonce: str) -> list[Message]:
    """A shot's messages, made again from the plan; what the model answered does not matter here."""
    prompter = Prompter(TextMaker("word"), nonce)
    return prompter.messages(plan.shots[shot], dict.fromkeys(range(len(plan.shots)), "answer"))


def first_difference(one: list[Message], other: list[Message]) -> tuple[int, int]:
    """(token of the prompt, token of the system prompt) at which two prompts first differ."""
    tokenizer = WordsTokenizer()
    texts = [tokenizer.render_chat(messages) for messages in (one, other)]
    ids = [tokenizer.encode(text) for text in texts]
    index = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False)))
    system = texts[0].index(one[0]["content"])
    _, spans = tokenizer.encode_with_offsets(texts[0])
    before = sum(1 for start, _ in spans if start < system)
    assert system <= spans[index][0] < system + len(one[0]["content"])
    return index, index - before


def test_an_accidental_reset_is_found_to_the_token(reset: Outcome) -> None:
    """A clock slips into the system prompt: app_reset, system[0], and the first token that differs, as
    found here from the prompts themselves."""
    assert reset.last_line["exit"] == 0
    scenario = prepare.load_scenario(RESET, virtual=True)
    plan = prepare.make_plan(scenario)
    nonce = f"v{prepare.seed_of(scenario)}"
    resets = [a for a in verdicts(reset) if a.is_miss]
    slipped = {f"{nonce}-{shot.id}" for shot in plan.shots if shot.prompt[0].stamp is not None}
    assert {a.id for a in resets} <= slipped
    assert len(resets) >= 3
    for a in resets:
        assert a.outcome == "app_reset"
        assert a.parent is not None
        found = a.first_divergence
        assert found is not None
        one, other = (prompt_of(plan, int(id.rsplit("-")[-1]), nonce) for id in (a.id, a.parent))
        assert (found.token_index, found.token_in_component) == first_difference(one, other)
        assert (found.path, found.token_in_component, found.components_equal_before) == ("system[0]", 700, 0)
        assert (a.missed or 0) > 59_000
    top = reset.summary["attribution"]["top"][0]
    assert (top["subtype"], top["component"]) == ("system_volatile_value", "system[0]")
    (largest, *_) = explain_run(reset.folder, None)
    assert any("system[0], token 700 of it" in line for line in largest["lines"])


class Impatient(Silent):
    """Presses Ctrl-C 12 s into the run."""

    pressed = False

    def tick(self, tick: Tick) -> None:
        if tick.elapsed > 12 and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_virtual_time(tmp_path: Path) -> None:
    """Ends the load there too: every request has its outcome, and the client is still believed."""
    outcome = run_scenario(QUICKSTART, Options(out=tmp_path / "run", virtual=True), Impatient())
    assert outcome.last_line["interrupted"] is True
    assert (outcome.last_line["exit"], outcome.last_line["client"]) == (4, "valid")
    assert outcome.summary["reason"] == "the run was interrupted"
    assert outcome.summary["all"]["outcomes"]["not_sent"] > 0
    assert outcome.summary["invariants"]["failed"] == []
    records = pq.read_table(outcome.folder / "records.parquet")
    plan = pq.read_table(outcome.folder / "plan.parquet")
    assert sorted(records["id"].to_pylist()) == sorted(plan["id"].to_pylist())


def test_judged_again_it_is_the_same(quickstart: Outcome, tmp_path: Path) -> None:
    """From its files alone a run gets the summary that it had, and other gates on request."""
    copy = tmp_path / "copy"
    shutil.copytree(quickstart.folder, copy)
    (copy / "summary.json").unlink()
    (copy / "report.html").unlink()
    rejudge(copy, draw=True)
    assert (copy / "summary.json").read_bytes() == (quickstart.folder / "summary.json").read_bytes()
    assert (copy / "report.html").stat().st_size > 10_000
    strict = rejudge(copy, gates=["chat.ttft_sched.p50 < 1ms", "invariants.failed == 0"])
    assert [gate["verdict"] for gate in strict.summary["gates"]] == ["FAIL", "PASS"]
    assert strict.last_line["exit"] == 1
    assert json.loads((copy / "summary.json").read_text())["exit"] == 0, "a look changes nothing"
    with pytest.raises(UsageFailed, match=r"chta.*did you mean"):
        rejudge(copy, gates=["chta.ttft_sched.p50 < 1s"])


@pytest.mark.parametrize("share", [0.0, 0.7, 0.999])
def test_a_run_cut_short_can_be_judged(share: float, quickstart: Outcome, tmp_path: Path) -> None:
    """With a record stream that ends at some byte, as after a kill: what is whole counts, and it says so."""
    copy = tmp_path / "cut"
    shutil.copytree(quickstart.folder, copy)
    for name in ("records.parquet", "summary.json", "report.html", "truth.parquet", "attribution.json"):
        (copy / name).unlink()
    judging = json.loads((copy / "judging.json").read_text())
    del judging["ends"]
    (copy / "judging.json").write_text(json.dumps(judging))
    table = pq.read_table(quickstart.folder / "records.parquet").cast(RECORD_SCHEMA)
    written = stream_of(table)
    (copy / "records-0.arrow").write_bytes(written[: int(len(written) * share)])
    outcome = rejudge(copy, draw=True)
    kept = sum(outcome.summary["all"]["outcomes"].values())
    assert outcome.last_line["exit"] == 4
    assert outcome.summary["incomplete"].startswith("the run did not finish: it was killed under load")
    assert kept < table.num_rows
    assert (kept > 0) == (share > 0)
    assert (copy / "report.html").exists()


def stream_of(table: object) -> bytes:
    """The records as a load process writes them: some batches, one after the other."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORD_SCHEMA) as stream:
        for batch in table.to_batches(max_chunksize=8):  # type: ignore[attr-defined]
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_what_is_no_run_is_refused(tmp_path: Path, quickstart: Outcome) -> None:
    """A folder without a run, a request that was not sent: said with the folder's name."""
    with pytest.raises(UsageFailed, match="not a run directory"):
        rejudge(tmp_path)
    with pytest.raises(UsageFailed, match="request 9999 was not sent"):
        explain_run(quickstart.folder, 9999)
    (one,) = explain_run(quickstart.folder, 0)
    assert one["id"] == 0
    assert one["lines"][0].startswith(f"v{quickstart.summary['seed']}-0: cold")


def test_an_engine_that_never_gets_ready_is_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated worker that crashes in its first step: exit 3 after a limit of virtual time."""

    def broken(self, now):
        raise RuntimeError("broken")

    monkeypatch.setattr(Worker, "heartbeat", broken)
    with pytest.raises(TargetFailed, match=r"not ready after 60 s: worker 0 "):
        run_scenario(Path("smoke"), Options(out=tmp_path / "run", virtual=True), Silent())


def test_adapters(tmp_path: Path) -> None:
    """Sessions that ask for an adapter get it, beside those that ask for the model; a folder that is there
    and cannot be read is refused by its name."""
    scenario = tmp_path / "adapters.yaml"
    scenario.write_text(
        "# Do adapters share an engine?\n"
        "headrace: 1\nseed: 7\n"
        "target: {engine: {model: simulated, adapters: {sql: ./none, fr: ./lora}, max_adapters: 1}}\n"
        "classes: {chat: {slo: {}}}\n"
        "phases: {warmup: 0s, window: 10s, cooldown: 0s, drain: 30s}\n"
        "load: [{class: chat, arrival: {type: constant, rate: 2/s}, adapters: {sql: 40%, fr: 40%},"
        " workload: {type: fixed, input: 100, output: 8}}]\n"
        "gates: [attainment >= 100%, kv.leaked_blocks == 0, invariants.failed == 0]\n"
    )
    outcome = run(scenario, tmp_path / "run")
    assert outcome.last_line["verdict"] == "pass"
    rows = pq.read_table(outcome.folder / "records.parquet").to_pylist()
    assert {row["adapter"] for row in rows} == {None, "sql", "fr"}
    assert {row["outcome"] for row in rows} == {"completed"}
    empty = (f"target.engine.adapters.fr={tmp_path}",)
    with pytest.raises(UsageFailed, match=r"adapter_config\.json: missing"):
        run_scenario(scenario, Options(out=tmp_path / "refused", virtual=True, overrides=empty), Silent())
