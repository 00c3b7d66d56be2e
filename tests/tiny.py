"""A tiny GGUF model with random weights: a real model for llama.cpp, made in a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>")  # user-defined tokens that look like markup
PLAIN_USER_DEFINED = ("\n\n",)


def byte_characters() -> dict[int, str]:
    """GPT-2's spelling of the 256 bytes as printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelling = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in spelling:
            spelling[byte] = chr(256 + len(spelling) - len(printable))
    return spelling


@dataclass
class Vocabulary:
    """Tokens with their types, and what a tokenizer needs beside them: merges, or scores."""

    write_tokenizer: Callable[[gguf.GGUFWriter], None]
    tokens: list[str]
    types: list[gguf.TokenType]

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        self.write_tokenizer(writer)


def _bytes_and_merges(markers: gguf.TokenType) -> Vocabulary:
    merges = [("t", "h"), ("th", "e"), ("{", '"'), ('"', "}"), ("}", "}"), ("Ġ", "a")]
    plain = [*byte_characters().values(), *(left + right for left, right in merges)]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(merge) for merge in merges])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)

    return Vocabulary(
        write,
        [*CONTROL, *MARKERS, *PLAIN_USER_DEFINED, *plain],
        [gguf.TokenType.CONTROL] * len(CONTROL)
        + [markers] * len(MARKERS)
        + [gguf.TokenType.USER_DEFINED] * len(PLAIN_USER_DEFINED)
        + [gguf.TokenType.NORMAL] * len(plain),
    )


def _sentencepieces(markers: gguf.TokenType) -> Vocabulary:
    """A piece is found only if it can be put together from two that are there, so all beginnings are."""
    control = ["<s>", "</s>", *CONTROL[1:]]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁Observation:", "Observation:", "▁the", "▁search", '▁{"', '"}', "}}", "观察：", "▁▁▁▁"]
    beginnings = [word[:end] for word in words for end in range(2, len(word) + 1)]
    characters = [chr(code) for code in range(33, 127)] + ["▁", *"观察："]
    plain = list(dict.fromkeys([*beginnings, *characters]))

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(
            [0.0] * (1 + len(control) + len(MARKERS) + len(raw)) + [-1.0 * n for n in range(len(plain))]
        )
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(True)

    return Vocabulary(
        write,
        ["<unk>", *control, *MARKERS, *raw, *plain],
        [gguf.TokenType.UNKNOWN]
        + [gguf.TokenType.CONTROL] * len(control)
        + [markers] * len(MARKERS)
        + [gguf.TokenType.BYTE] * len(raw)
        + [gguf.TokenType.NORMAL] * len(plain),
    )


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    chat_template: str | None = None,
    n_embd: int = 32,
    n_ctx: int = 4096,
    markers: gguf.TokenType = gguf.TokenType.USER_DEFINED,
    architecture: Literal["llama", "gemma3", "mamba"] = "llama",
    tokenizer: Literal["gpt2", "sentencepiece"] = "gpt2",
) -> Path:
    """A small model over bytes, with control tokens and (by default user-defined) markers: a `llama` with
    one layer, a `gemma3` with a sliding window of 64 tokens, or a `mamba`, whose memory can't be cut back.

    Its tokenizer merges bytes as GPT-2's does, or finds pieces by their scores, with bytes for what has none
    and a space before every text, as Llama's SentencePiece does."""
    random = np.random.default_rng(seed)
    vocabulary = _bytes_and_merges(markers) if tokenizer == "gpt2" else _sentencepieces(markers)
    vocab = len(vocabulary.tokens)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny random {architecture}")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_vocab_size(vocab)
    vocabulary.write(writer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.5, shape).astype(np.float32))

    def ones(name: str, n: int = n_embd) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    weights("token_embd", vocab, n_embd)
    ones("output_norm")
    weights("output", vocab, n_embd)
    if architecture == "mamba":
        _mamba(writer, n_embd, random)
    else:
        _attention(writer, n_embd, weights, ones, window=64 if architecture == "gemma3" else 0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _attention(
    writer: gguf.GGUFWriter,
    n_embd: int,
    weights: Callable[..., None],
    ones: Callable[..., None],
    window: int,
) -> None:
    n_ff, heads = 64, 2
    layers = 6 if window else 1  # gemma3: the sixth sees everything, the others a window
    writer.add_block_count(layers)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // heads)
    if window:
        writer.add_sliding_window(window)
        writer.add_key_length(n_embd // heads)
        writer.add_value_length(n_embd // heads)
    for layer in range(layers):
        at = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"{at}.{name}", n_embd, n_embd)
        ones(f"{at}.attn_norm")
        ones(f"{at}.ffn_norm")
        weights(f"{at}.ffn_gate", n_ff, n_embd)
        weights(f"{at}.ffn_up", n_ff, n_embd)
        weights(f"{at}.ffn_down", n_embd, n_ff)
        if window:
            ones(f"{at}.post_attention_norm")
            ones(f"{at}.post_ffw_norm")
            ones(f"{at}.attn_q_norm", n_embd // heads)
            ones(f"{at}.attn_k_norm", n_embd // heads)


def _mamba(writer: gguf.GGUFWriter, n_embd: int, random: np.random.Generator) -> None:
    inner, state, rank, kernel = 2 * n_embd, 8, 4, 4
    writer.add_block_count(1)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    shapes = {
        "ssm_in.weight": (2 * inner, n_embd),
        "ssm_conv1d.weight": (inner, kernel),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * state, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_out.weight": (n_embd, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}", random.normal(0, 0.5, shape).astype(np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(n_embd, np.float32))
    writer.add_tensor("blk.0.ssm_a", -np.ones((inner, state), np.float32))
    writer.add_tensor("blk.0.ssm_d", np.ones(inner, np.float32))
