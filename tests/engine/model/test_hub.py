"""Models by hub id, from a hub on loopback: fetched once, whole, and refused with a way out."""

import errno
import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("huggingface_hub")
safetensors = pytest.importorskip("safetensors.torch")

from engine.config import EngineConfig  # noqa: E402
from engine.model import ModelError, load_runner, load_tokenizer, resolve  # noqa: E402
from engine.model.fetch import PullError  # noqa: E402
from engine.model.hub import RemoteFile, Repository, is_hub_id, prepare  # noqa: E402
from engine.model.hub_child import explain  # noqa: E402
from engine.model.pull import is_pulled, listing, model_folder, pull  # noqa: E402
from engine.model.weights import random_tensors  # noqa: E402
from headrace.errors import UsageFailed  # noqa: E402
from headrace.models import obtain  # noqa: E402
from tests.engine.model.fake_hub import COMMIT, FakeHub, serving  # noqa: E402

pytestmark = pytest.mark.torch
WEIGHTS = "model.safetensors"
PIECE = 10 << 20
"""What huggingface_hub writes at once."""


@pytest.fixture
def hub(model_folder_of, small_config, write_tokenizer, monkeypatch, tmp_path):
    """A hub with a small model, beside files that nobody here needs."""
    folder = model_folder_of(small_config)
    write_tokenizer(folder)
    for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors"):
        (folder / name).write_text("not needed")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving(FakeHub(folder)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def shards(folder):
    """The weights in two files with an index."""
    whole = safetensors.load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    index = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        part = sorted(whole)[number - 1 :: 2]
        safetensors.save_file({key: whole[key] for key in part}, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def nothing_pulled(name="acme/small"):
    return not is_pulled(model_folder(name))


def test_hub_ids():
    """org/name, with a revision or without; nothing that is a path."""
    assert all(map(is_hub_id, ("acme/small", "Qwen/Qwen2.5-0.5B-Instruct", "a/b@v1.0")))
    assert not any(
        map(is_hub_id, ("small", "./a/b", "../a/b", "/a/b", "a/b/c", "a/b@", "a/../b", "a/b@../c", ""))
    )


def test_a_pulled_hub_id_serves_without_a_network(hub, monkeypatch):
    """Only what is needed is fetched; then the id is a model like any other, offline too."""
    with pytest.raises(ModelError, match="'acme/small' is not pulled yet: run bench model pull acme/small"):
        resolve("acme/small")
    seen = []
    folder = pull("acme/small", progress=lambda done, total: seen.append((done, total)))
    assert folder == model_folder("acme/small")
    names = {"config.json", "tokenizer.json", WEIGHTS}
    assert set(hub.fetched) == names
    assert {path.name for path in folder.iterdir()} == names | {"headrace.json"}
    assert json.loads((folder / "headrace.json").read_text())["commit"] == COMMIT
    size = (folder / WEIGHTS).stat().st_size
    assert seen[-1] == (size, size)
    assert listing()["acme/small"] == str(folder)

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert pull("acme/small") == folder
    config = EngineConfig(model="acme/small")
    assert resolve("acme/small") == folder
    assert load_runner(config).eos_ids == load_tokenizer(config).eos_ids == {258}


def test_shards_come_by_their_index(hub):
    """All files that the index names, and no other safetensors."""
    shards(hub.folder)
    folder = pull("acme/small")
    assert not (folder / "consolidated.safetensors").exists()
    assert len(list(folder.glob("*.safetensors"))) == 2
    assert load_runner(EngineConfig(model="acme/small"))


def test_a_revision_is_a_model_of_its_own(hub):
    """It lies in its own folder; one that the hub does not have is said."""
    folder = pull("acme/small@v1")
    assert folder.name == "small@v1"
    assert nothing_pulled()
    assert set(listing()) == {"smollm2-135m", "acme/small@v1"}
    with pytest.raises(PullError, match=r"acme/small has no revision 'v9' on http://127\.0\.0\.1"):
        pull("acme/small@v9")


@pytest.mark.parametrize(
    ("arrange", "says"),
    [
        ({"id": "acme/other"}, r"has no model acme/small, or it is private: check the name.* HF_TOKEN"),
        ({"gated": True}, r"acme/small is gated: ask for access on .*/acme/small, then log in"),
        ({"wrong_sha256": True}, rf"{WEIGHTS}: sha256 is .*, the hub says 0000.*; pull again"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_way_out(hub, arrange, says):
    """No such model, no access, other bytes than promised; nothing half is left in the model's place."""
    for name, value in arrange.items():
        setattr(hub, name, value)
    with pytest.raises(PullError, match=says):
        pull("acme/small")
    assert nothing_pulled()


def test_no_network_and_offline_mode(hub, monkeypatch):
    """Where it tried, and what to set."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(PullError, match=r"127\.0\.0\.1:1 could not be asked for acme/small.*HF_ENDPOINT"):
        pull("acme/small")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PullError, match="HF_HUB_OFFLINE is set: unset it"):
        pull("acme/small")


def test_models_that_cannot_be_served_are_refused_before_their_weights_come(hub):
    """The config and the tokenizer are looked at first."""
    config = hub.folder / "config.json"
    good = config.read_text()
    config.write_text(good.replace("LlamaForCausalLM", "GPT2LMHeadModel"))
    with pytest.raises(PullError, match=r"acme/small cannot be served: .*architectures is"):
        pull("acme/small")
    config.write_text(good)
    (hub.folder / "tokenizer.json").rename(hub.folder / "tokenizer.model")
    with pytest.raises(PullError, match=r"acme/small has no tokenizer\.json"):
        pull("acme/small")
    (hub.folder / WEIGHTS).unlink()
    with pytest.raises(PullError, match=r"acme/small has no model\.safetensors"):
        pull("acme/small")
    assert WEIGHTS not in hub.fetched


def test_a_disk_that_is_too_small_is_known_before(hub, monkeypatch):
    """The numbers, and where else it could go."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(PullError, match=r"has 0 MB free, 0 MB are needed; choose a folder with --to"):
        pull("acme/small")
    assert WEIGHTS not in hub.fetched


def test_a_disk_that_fills_up_meanwhile_and_anything_else_is_explained():
    """What the child says of errors that no test can bring about."""
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "the disk is full" in explain(full, "acme/small", "main")
    assert "--to" in explain(full, "acme/small", "main")
    odd = explain(ValueError("a captive portal"), "acme/small", "main")
    assert "ValueError: a captive portal; check the network" in odd


def test_a_download_that_breaks_off_goes_on(hub, raw_config_of, small_config):
    """What came stays, and only the rest is asked for: after Ctrl-C whole files, after a lost connection
    the pieces that huggingface_hub had written."""
    large = replace(small_config, vocabulary=120_000)
    (hub.folder / "config.json").write_text(json.dumps(raw_config_of(large)))
    safetensors.save_file(random_tensors(large, 0), hub.folder / WEIGHTS)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("acme/small", progress=interrupt)
    assert nothing_pulled()
    hub.fetched.clear()
    hub.cut[WEIGHTS] = PIECE + 1000
    folder = pull("acme/small")
    assert hub.fetched[-1] == f"{WEIGHTS} from {PIECE}"
    assert "config.json" not in hub.fetched
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()


def test_a_command_that_serves_a_hub_id_pulls_it_first(hub, capsys):
    """Once; what is no hub id, or a folder, is left alone."""
    assert obtain("acme/small")
    hub.fetched.clear()
    assert not any(obtain(name) for name in ("acme/small", "simulated", str(hub.folder)))
    assert not hub.fetched
    with pytest.raises(UsageFailed, match="no model acme/other"):
        obtain("acme/other")


def test_a_pulled_model_that_was_damaged_is_said(hub):
    """Pulling again does not take it for whole."""
    folder = pull("acme/small")
    os.truncate(folder / WEIGHTS, 1000)
    with pytest.raises(PullError, match=rf"a torn one.*\n{folder} was damaged .* remove it and pull again"):
        pull("acme/small")
    shutil.rmtree(folder)
    assert pull("acme/small") == folder


def test_a_pull_that_another_one_overtakes_is_fine(hub, monkeypatch):
    """Whoever comes second finds the model there."""
    one = pull("acme/small")
    other = one.rename(one.with_name("aside"))

    def overtaken(name):
        other.rename(one)
        raise PullError("the staging folder is gone")

    monkeypatch.setattr("engine.model.hub.look", overtaken)
    assert pull("acme/small") == one


def test_to_names_the_models_own_folder(hub, tmp_path):
    """A pulled model in any folder; another model's folder is never touched."""
    target = tmp_path / "mine"
    assert pull("acme/small", to=target) == target
    assert resolve(str(target)) == target
    with pytest.raises(PullError, match="holds another model"):
        pull("acme/small@v1", to=target)


@pytest.mark.parametrize("shard", [5, None, ["x.safetensors"], "../x.safetensors", "x.safetensors"])
def test_an_index_of_files_that_are_not_there(hub, monkeypatch, shard):
    """Whatever it names instead, beside a good name too, is said before weights are fetched."""
    monkeypatch.setattr("engine.model.hub.download", lambda *_: None)
    index = {"weight_map": {"a": "model-1.safetensors", "b": shard}}
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    names = ("tokenizer.json", "config.json", "model.safetensors.index.json", "model-1.safetensors")
    files = {name: RemoteFile(1, None) for name in names}
    repository = Repository("acme/small", COMMIT, "http://127.0.0.1", files)
    with pytest.raises(PullError, match=r"acme/small: .*index\.json names .*, which it does not have"):
        prepare(repository, hub.folder)
