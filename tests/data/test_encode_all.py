"""Many texts at once are the tokens that each of them is alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.inbox import InboxPrompt
from slime_events.core.config.data import DataSettings
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.plugins.tokenizer import encode_all, load_tokenizer
from tests.docs.pages import ROOT
from tests.simulation.parts import Letters

SAID = ["hi there", "a [CLS] b", "<|im_start|>user\n2+2<|im_end|>", "", " ", "ümläut 中文 🙂", "x" * 40]


@cache
def demo() -> Any:
    return load_tokenizer(str(ROOT / "slime_events" / "app" / "demo" / "base"))


@cache
def words(*, split_special: bool = False) -> Any:
    """One whose file asks for what `encode` leaves away: it cuts, fills up, and adds special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        token: n for n, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "hi", "there", "a", "b", "[", "]", "CLS"])
    }
    own = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    own.enable_truncation(2)
    own.enable_padding(length=8)
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        cls_token="[CLS]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        split_special_tokens=split_special,
    )


TOKENIZERS = {
    "demo": demo,
    "words": words,
    "split": lambda: words(split_special=True),
    "letters": Letters,
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.lists(st.sampled_from(SAID) | st.text(max_size=20), max_size=8))
def test_many_are_as_each_alone(name: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    alone = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    if name == "words":  # as somebody else may leave it
        tokenizer.backend_tokenizer.enable_truncation(2)
    assert encode_all(tokenizer, texts) == alone


def test_a_class_that_encodes_in_a_way_of_its_own_does_so() -> None:
    class Louder(type(words())):  # type: ignore[misc]
        def encode(self, text: str, **more: Any) -> list[int]:
            return [*super().encode(text, **more), 7]

    louder = Louder(tokenizer_object=words().backend_tokenizer, unk_token="[UNK]")
    assert encode_all(louder, ["hi", "there a"]) == [[3, 7], [4, 5, 7]]


def test_one_whose_own_encode_was_set_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = words()
    monkeypatch.setattr(own, "encode", lambda text, **more: [7], raising=False)
    assert encode_all(own, ["hi", "there a"]) == [[7], [7]]


@pytest.mark.parametrize("name", ["demo", "words"])
def test_only_the_first_of_many_goes_the_whole_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerBase

    texts, encode = list[str](), PreTrainedTokenizerBase.encode

    def noted(self: Any, text: str, **more: Any) -> Any:
        texts.append(text)
        return encode(self, text, **more)

    monkeypatch.setattr(PreTrainedTokenizerBase, "encode", noted)
    encode_all(TOKENIZERS[name](), ["hi", "there", "a", "b"])
    assert texts == ["hi"]


prompts = st.builds(
    InboxPrompt,
    key=st.text(min_size=1, max_size=5),
    prompt=st.sampled_from(SAID)
    | st.lists(st.builds(lambda text: {"role": "user", "content": text}, st.sampled_from(SAID))),
    metadata=st.sampled_from([{}, {"rm_type": "nobody's"}, 5]),
    rendered=st.booleans(),
)


@given(given_prompts=st.lists(prompts, max_size=6), template=st.booleans())
def test_a_message_s_prompts_are_read_as_each_alone(given_prompts: list[InboxPrompt], template: bool) -> None:
    """Get the same events, and the same errors for the same prompts."""
    outside = OutsidePrompts(DataSettings(apply_chat_template=template), demo(), 20, check)

    def alone(prompt: InboxPrompt) -> Any:
        try:
            return outside.submitted(prompt, "quiz")
        except WrongField as error:
            return error

    def plain(result: Any) -> Any:
        return (result.field, result.message) if isinstance(result, WrongField) else result

    assert list(map(plain, outside.submitted_all(given_prompts, "quiz"))) == [plain(alone(p)) for p in given_prompts]


def check(metadata: Any) -> None:
    from slime_events.core.config.reward import RewardSettings
    from slime_events.plugins.rewards.registry import check_metadata

    check_metadata(RewardSettings(rm_type="exact"), metadata)
