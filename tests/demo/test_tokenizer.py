"""The demo's tokenizer: one spelling for every text, short prompts, byte b is token b."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tools.demo_base import VOCABULARY, build_tokenizer


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text)) == text


def test_tokens_are_bytes_and_specials() -> None:
    assert len(tokenizer()) == VOCABULARY == 264
    assert tokenizer().encode("8-é") == list("8-é".encode())
    assert tokenizer().encode("<think>4</think>4<|im_end|>") == [259, ord("4"), 260, ord("4"), 258]
    assert tokenizer().decode([259, 52, 260, 52, 258], skip_special_tokens=True) == "<think>4</think>4"


def test_a_question_is_thirteen_tokens() -> None:
    turns = [{"role": "user", "content": "8-5-1+2"}]
    text = tokenizer().apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\n8-5-1+2<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer().encode(text)) == 13
