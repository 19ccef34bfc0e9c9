"""A random Qwen3 in the demo's shape (0.4 M parameters) with a byte tokenizer, as an HF folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 264
EOS, PAD = 257, 258


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|start|>", "<|end|>", "<|pad|>", *(f"<|extra{i}|>" for i in range(5))]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|pad|>"
    )


def write(folder: Path, seed: int, **sizes: int) -> Path:
    """Make the checkpoint; each seed gives other weights. sizes: of a larger model. Returns the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4} | sizes
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        **shape,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=EOS,
        pad_token_id=PAD,
        initializer_range=0.15,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder
