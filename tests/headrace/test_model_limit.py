"""Loads beyond the model's own limit are refused before anything is sent, with file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.model import ModelError
from headrace.console import Silent
from headrace.errors import TargetFailed, UsageFailed
from headrace.prepare import load_scenario, tokenizer_file
from headrace.run import Options, run_scenario

FILE = """\
# How long?
headrace: 1
seed: 1
target: {engine: {model: tiny}}
classes: {c: {}}
phases: {window: 1s}
load:
  - class: c
    arrival: {type: constant, rate: 1/s}
    workload: {type: fixed, input: 30, output: 8}
gates: [dropped == 0]
virtual:
  load.0.workload.input: 300000
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "long.yaml"
    file.write_text(FILE)
    return file


def test_the_built_in_model_has_a_limit_of_its_own(path: Path) -> None:
    """It is known without loading the model; in virtual time another model runs, with another limit."""
    load_scenario(path)
    with pytest.raises(UsageFailed) as refused:
        load_scenario(path, ["load.0.workload.input=200000"])
    (_, line) = refused.value.lines
    assert re.search(
        r"load\.0\.workload: the model's limit .*is [\d,]+, this can ask for 200,008 tokens", line
    )
    load_scenario(path, virtual=True)


def test_the_chat_template_takes_its_part_of_the_limit(path: Path) -> None:
    """A prompt of 44 tokens and what the template adds to it is what the engine sees: what fits to the last
    token is let in, one more would fail in the run. A session's prompts hold messages of several roles."""
    limit = ["target.engine={model: simulated, max_model_len: 60}"]
    load_scenario(path, [*limit, "load.0.workload.input=44"])
    with pytest.raises(UsageFailed) as refused:
        load_scenario(path, [*limit, "load.0.workload.input=45"])
    less = "the model's limit less the 8 tokens of its chat template is 52, this can ask for 53 tokens"
    assert refused.value.lines[1:] == (f"  {path}:10: load.0.workload: {less}",)
    load_scenario(path, [*limit, "load.0.workload.input=45"], virtual=True)
    sessions = "load.0.workload={type: sessions, turns: 1, system: 0, user: 45, output: 8}"
    load_scenario(path, [*limit, sessions])


def model_with(folder: Path, words: list[str] | None) -> Path:
    """A model's folder without weights; ``words`` are its tokenizer's, None = it has none."""
    folder.mkdir()
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    config = dict.fromkeys(sizes, 8) | {"vocab_size": 99, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    if words is not None:
        known = {word: id for id, word in enumerate(["[UNK]", *words])}
        tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("words", "says"), [([], "prompts of an exact length cannot be made"), (None, "cannot be read: No such")]
)
def test_a_model_whose_tokenizer_makes_no_prompts_is_refused(
    path: Path, tmp_path: Path, words: list[str] | None, says: str
) -> None:
    """With file and line, before it is started. Prompts of other lengths than asked for would be measured.
    In virtual time it is not needed; a model that is not there is another error."""
    override = f"target.engine.model={model_with(tmp_path / 'm', words)}"
    with pytest.raises(UsageFailed) as refused:
        load_scenario(path, [override])
    (line,) = refused.value.lines[1:]
    assert f"--set {override}: target.engine.model: {tmp_path}/m/tokenizer.json: {says}" in line
    assert "target.tokenizer" not in line
    load_scenario(path, [override], virtual=True)
    gone = load_scenario(path, [override + "-gone"])
    with pytest.raises(ModelError, match="no such folder"):
        tokenizer_file(gone)


def test_a_model_that_is_there_and_broken_is_refused_with_its_line(path: Path, tmp_path: Path) -> None:
    """Not taken for one that is not there yet."""
    folder = model_with(tmp_path / "m", [])
    (folder / "config.json").write_text("{")
    path.write_text(FILE.replace("tiny", str(folder)))
    with pytest.raises(UsageFailed) as refused:
        load_scenario(path)
    (line,) = refused.value.lines[1:]
    assert line.startswith(f"  {path}:4: target.engine.model: {folder}")


def test_a_model_that_can_make_prompts_makes_them(path: Path, tmp_path: Path) -> None:
    """Its own tokenizer does."""
    folder = model_with(tmp_path / "m", [f"ab{letter}" for letter in "cdefghijklmnopqrstuvwxyz"])
    loaded = load_scenario(path, [f"target.engine.model={folder}"])
    assert tokenizer_file(loaded) == str(folder / "tokenizer.json")


def test_the_limit_of_a_hub_id_is_known_once_it_is_pulled(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run pulls it before anything else, and then looks at the load again."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = dict.fromkeys(sizes, 8) | {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32}
    config |= {"head_dim": 2}

    def obtain(model: str) -> bool:
        folder = tmp_path / "models" / model
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "headrace.json").write_text("{}")
        return True

    monkeypatch.setattr("headrace.run.obtain", obtain)
    with pytest.raises(UsageFailed, match="the model's limit is 32, this can ask for 38 tokens"):
        run_scenario(path, Options(overrides=("target.engine.model=acme/small",)), Silent())


def test_a_model_that_goes_away_while_the_run_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the target, not a traceback."""

    async def run(*_: object) -> None:
        raise ModelError(["/models/x: no such folder"])

    monkeypatch.setattr("headrace.run.run", run)
    with pytest.raises(TargetFailed, match="/models/x: no such folder"):
        run_scenario(path, Options(), Silent())
    path.write_text(FILE.replace("input: 30,", "input: 200000,"))
    with pytest.raises(UsageFailed) as refused:
        load_scenario(path)
    assert "long.yaml:10: load.0.workload: the model's limit " in refused.value.lines[1]


class _Models(BaseHTTPRequestHandler):
    """Lists one model as vLLM does, and counts what else it is asked."""

    posts = 0

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 37}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        type(self).posts += 1
        self.send_error(500)

    def log_message(self, format: str, *args: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def server() -> Iterator[str]:
    http = HTTPServer(("127.0.0.1", 0), _Models)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_foreign_model_is_asked_for_its_limit(path: Path, server: str, tmp_path: Path) -> None:
    """One token more than it takes: nothing is sent, and no run directory is made."""
    out = tmp_path / "run"
    with pytest.raises(UsageFailed) as refused:
        run_scenario(path, Options(out=out, target=server), Silent())
    words = "long.yaml:10: load.0.workload: the model's limit is 37, this can ask for 38 tokens"
    assert words in refused.value.lines[1]
    assert not out.exists()
    assert _Models.posts == 0
