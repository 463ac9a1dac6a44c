"""config.json of every family: read as transformers reads it, or refused by the key that is at fault."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.config_json import FAMILIES, parse_config, read_config
from engine.model.decoder_config import Llama3Scaling, ModelError

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def raw(architecture="Llama", **changes):
    """A config.json with these keys changed; "absent" takes one out."""
    merged = BASE | {"architectures": [f"{architecture}ForCausalLM"]} | changes
    return {key: value for key, value in merged.items() if value != "absent"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"architectures is \['GPT2LMHeadModel'\], this engine serves LlamaForCausalLM, Qwen2ForCausalLM, "
            "Qwen3ForCausalLM, MistralForCausalLM",
        ),
        ({"architectures": "absent"}, "architectures is None"),
        ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures is"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"hidden_size": "absent"}, "hidden_size is None, not a positive whole number"),
        ({"vocab_size": -3}, "vocab_size is -3"),
        ({"num_attention_heads": 3}, "num_attention_heads 3 is no multiple of num_key_value_heads 2"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', not a positive number"),
        ({"rope_theta": -1}, "rope_theta is -1, not a positive number"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling is 'yarn', this engine has 'default' and"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope scaling is 'linear'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope scaling is 'dynamic'"),
        ({"rope_scaling": "yarn"}, "rope scaling is 'yarn'"),
        ({"rope_scaling": LLAMA3 | {"factor": None}}, "factor is None, not a positive number"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4}}, "needs low_freq_factor < high_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"mscale": 2}}, "rope scaling 'llama3' has mscale, which"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, "'default' has full_attention, which"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25"),
        ({"rope_parameters": {"rope_theta": 9.0}, "rope_scaling": LLAMA3}, "one of them must go"),
        ({"sliding_window": 64}, "sliding_window is 64, LlamaForCausalLM has none"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types is .*, while other keys say 'full_att"),
    ],
)
def test_configs_that_cannot_be_served_are_refused(tmp_path, changes, says):
    """The message names the file, what it says, and what is served."""
    (tmp_path / "config.json").write_text(json.dumps(raw(**changes)))
    with pytest.raises(ModelError, match=says) as caught:
        read_config(tmp_path)
    assert all(problem.startswith(f"{tmp_path / 'config.json'}: ") for problem in caught.value.problems)


def test_all_problems_of_a_config_are_told_at_once():
    """Nobody mends a config one error at a time."""
    for architecture, more in (("Unknown", 1), ("Llama", 0)):
        with pytest.raises(ModelError) as caught:
            parse_config(raw(architecture, hidden_act="gelu", mlp_bias=True))
        assert len(caught.value.problems) == 2 + more
    with pytest.raises(ModelError) as caught:
        parse_config(raw(mlp_bias=True, rope_theta=0, rms_norm_eps=0, rope_scaling="yarn", sliding_window=9))
    assert len(caught.value.problems) == 5


def test_defaults_and_newer_forms_are_understood():
    """Absent KV heads mean as many as heads, absent head_dim the quotient; rope_parameters holds theta."""
    parameters = {"rope_theta": 5e5, "rope_type": "default"}
    config = parse_config(raw(num_key_value_heads="absent", head_dim="absent", rope_parameters=parameters))
    assert (config.kv_heads, config.head_size, config.rope_theta) == (4, 8, 5e5)
    config = parse_config(raw(rms_norm_eps="absent"))
    assert (config.rms_eps, config.rope_theta, config.tied, config.windows) == (1e-6, 10_000.0, False, ())
    assert parse_config(raw(rope_theta=7.0, rope_scaling=None)).rope_theta == 7.0


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read_from_either_key(key):
    """Llama 3.1 keeps theta beside it, newer files inside."""
    config = parse_config(raw(**{key: LLAMA3, "rope_theta": 5e5}))
    assert (config.rope_theta, config.rope_scaling) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert parse_config(raw(**{key: LLAMA3 | {"rope_theta": 1e6}})).rope_theta == 1e6


def test_families_differ_in_biases_and_norms():
    """Qwen2 has biases on q, k and v; Qwen3 norms on each head of q and k."""
    found = {name: parse_config(raw(name.removesuffix("ForCausalLM"))) for name in FAMILIES}
    assert [name for name, config in found.items() if config.qkv_bias] == ["Qwen2ForCausalLM"]
    assert [name for name, config in found.items() if config.qk_norm] == ["Qwen3ForCausalLM"]


@pytest.mark.parametrize(
    ("architecture", "key"),
    [(name, "num_key_value_heads") for name in ("Qwen2", "Qwen3", "Mistral")] + [("Qwen3", "head_dim")],
)
def test_sizes_that_transformers_would_invent_are_demanded(architecture, key):
    """Its defaults are those of one model; with another one's weights they would be wrong."""
    with pytest.raises(ModelError, match=f"{key} is None"):
        parse_config(raw(architecture, **{key: "absent"}))


QWEN = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}
TYPES = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("Mistral", {"sliding_window": 64}, (64,) * 4),
        ("Mistral", {"sliding_window": None}, ()),
        ("Mistral", {}, (4096,) * 4),
        ("Qwen2", {"sliding_window": 64, "max_window_layers": 3}, ()),
        ("Qwen2", QWEN, (None, None, None, 64)),
        ("Qwen3", QWEN | {"max_window_layers": 0}, (64,) * 4),
        ("Qwen3", QWEN | {"max_window_layers": 9}, (None,) * 4),
        ("Qwen2", QWEN | {"max_window_layers": "absent"}, (None,) * 4),
        ("Qwen2", QWEN | {"layer_types": TYPES}, (64, None, None, 64)),
        ("Qwen2", {"layer_types": ["full_attention"] * 4}, ()),
        ("Llama", {"sliding_window": None, "layer_types": None}, ()),
    ],
)
def test_windows_are_those_of_transformers(architecture, changes, windows):
    """Mistral slides everywhere unless told null; Qwen only if switched on, and from a layer on."""
    assert parse_config(raw(architecture, **changes)).windows == windows


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        ("Mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("Mistral", {"layer_types": TYPES}, "layer_types is .*, while other keys say 'sliding_attention'"),
        ("Qwen2", QWEN | {"sliding_window": True}, "sliding_window is True"),
        ("Qwen2", QWEN | {"max_window_layers": -1}, "max_window_layers is -1"),
        ("Qwen2", QWEN | {"layer_types": TYPES[:2]}, "not 4 times 'full_attention' or 'sliding_attention'"),
        ("Qwen2", QWEN | {"layer_types": ["linear"] * 4}, "not 4 times"),
        ("Qwen3", {"layer_types": TYPES}, "while other keys say 'full_attention'"),
    ],
)
def test_windows_that_do_not_add_up_are_refused(architecture, changes, says):
    """Two keys that disagree would be computed one way here and another way there."""
    with pytest.raises(ModelError, match=says):
        parse_config(raw(architecture, **changes))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats()
    | st.sampled_from(["llama3", "default", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LLAMA3, "type"]), inner),
    max_leaves=5,
)
KEYS = [*BASE, *QWEN, "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "tie_word_embeddings"]


@given(st.sampled_from(list(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_no_value_of_a_key_is_anything_but_read_or_refused(name, changes):
    """Whatever stands in the file: a config with sane numbers, or a ModelError."""
    try:
        config = parse_config(BASE | {"architectures": [name]} | changes)
    except ModelError:
        return
    assert config.heads % config.kv_heads == 0
    assert config.head_size % 2 == 0
    assert 0 < config.rms_eps < float("inf")
    assert len(config.windows) in (0, config.layers)


def test_no_folder_no_config_no_json(tmp_path):
    """Each of the three is said plainly."""
    with pytest.raises(ModelError, match="no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        read_config(tmp_path)
    for content, says in (("{", "not JSON"), ("[]", "not an object"), ("[" * 100_000, "not JSON")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=says):
            read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: Is a directory"):
        read_config(tmp_path)
