"""A tiny GGUF model with random weights: a real model for llama.cpp, made in a moment."""

from __future__ import annotations

from pathlib import Path

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


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    chat_template: str | None = None,
    n_embd: int = 32,
    n_ctx: int = 4096,
    markers: gguf.TokenType = gguf.TokenType.USER_DEFINED,
) -> Path:
    """A one-layer llama over bytes, with control tokens and (by default user-defined) markers."""
    random = np.random.default_rng(seed)
    spelling = byte_characters()
    tokens = [*CONTROL, *MARKERS, *PLAIN_USER_DEFINED, *spelling.values()]
    types = [gguf.TokenType.CONTROL] * len(CONTROL)
    types += [markers] * len(MARKERS)
    types += [gguf.TokenType.USER_DEFINED] * len(PLAIN_USER_DEFINED)
    types += [gguf.TokenType.NORMAL] * 256
    merges = []
    for left, right in (("t", "h"), ("th", "e"), ("{", '"'), ('"', "}"), ("}", "}"), ("Ġ", "a")):
        merges.append(f"{left} {right}")
        tokens.append(left + right)
        types.append(gguf.TokenType.NORMAL)

    n_ff, heads, vocab = 64, 2, len(tokens)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny random")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // heads)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.5, shape).astype(np.float32)

    writer.add_tensor("token_embd.weight", weights(vocab, n_embd))
    writer.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    writer.add_tensor("output.weight", weights(vocab, n_embd))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", weights(n_embd, n_embd))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(n_embd, np.float32))
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(n_embd, np.float32))
    writer.add_tensor("blk.0.ffn_gate.weight", weights(n_ff, n_embd))
    writer.add_tensor("blk.0.ffn_up.weight", weights(n_ff, n_embd))
    writer.add_tensor("blk.0.ffn_down.weight", weights(n_embd, n_ff))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
