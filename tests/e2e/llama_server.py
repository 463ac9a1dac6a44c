"""llama.cpp's own server on a free port of 127.0.0.1, with a model of random weights that it makes itself.

    python tests/e2e/llama_server.py FOLDER

Prints its address, then serves until its standard input ends. One thread; ready in about a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGUFWriter, TokenType

WIDTH, LAYERS, HEADS, INNER = 64, 2, 2, 128
WORDS = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "with", "his", "be")
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["\u2581" + word for word in WORDS] + [chr(code) for code in range(33, 127)] + ["\u2581"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_model(path: Path) -> None:
    writer = GGUFWriter(str(path), "llama")
    _describe(writer)
    _vocabulary(writer)
    _weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: GGUFWriter) -> None:
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_file_type(0)


def _vocabulary(writer: GGUFWriter) -> None:
    tokens = CONTROL + BYTES + PIECES
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * len(BYTES)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(kinds) + [-float(rank) for rank in range(len(PIECES))])
    writer.add_token_types([int(kind) for kind in kinds] + [int(TokenType.NORMAL)] * len(PIECES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def _weights(writer: GGUFWriter) -> None:
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    size = len(CONTROL + BYTES + PIECES)
    out = tensor("output", size, WIDTH)
    out[: len(CONTROL + BYTES)] = 0  # it says words and letters, and never stops by itself
    writer.add_tensor("token_embd.weight", tensor("token_embd", size, WIDTH))
    writer.add_tensor("output.weight", out)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor(name, *shape))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))


def serve(model: Path) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_threads_http = 4096, 2, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    made = Path(sys.argv[1]) / "tiny.gguf"
    write_model(made)
    serve(made)
