"""The demo's tokenizer: bytes, five special tokens and the three role lines of ChatML, 264 tokens in all.

Byte-level BPE without a single merge: token `b` (0 to 255) is byte `b`, so every text has exactly one spelling and a
response's length in tokens can be read off the screen.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
THINK = ("<think>", "</think>")
ROLE_LINES = ("system\n", "user\n", "assistant\n")
VOCABULARY = 256 + 5 + len(ROLE_LINES)
MODEL_MAX_LENGTH = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """The letter that byte-level BPE (GPT-2's table) writes for each byte, by byte value.

    Printable Latin-1 stands for itself, every other byte takes the next letter from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; it ends a turn with <|im_end|> and pads with <|endoftext|>."""
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    # Not special: the reward reads <think> in the text, also where special tokens are left out of it.
    core.add_tokens([AddedToken(token, normalized=False) for token in (*THINK, *ROLE_LINES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=CHAT_TEMPLATE,
        eos_token=END,
        pad_token=PAD,
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Write the tokenizer as an HF folder that AutoTokenizer reads; returns it."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    return tokenizer
