"""Chats to train on: which tokens a supervised loss is taken of, by the four types, and as prompts of a run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import BadReason, Problem, Prompt, make_prompt
from slime_events.loop.prompts.source import check_first_rows
from slime_events.plugins.loader import load_function
from slime_events.plugins.loss_masks import DISTILLED, MultiTurnLossMaskGenerator
from slime_events.plugins.tokenizer import load_tokenizer
from tests.docs.pages import ROOT

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_TOOLS = "{% if tools %}{{ '<|im_start|>system\ntools: ' + tools[0]['name'] + '<|im_end|>\n' }}{% endif %}" + CHATML
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML
)
# As Qwen3's: the last answer is thought about, earlier ones lose their thinking.
THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DISTILLS = (
    "{% for m in messages %}{{ '<|User|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"
)
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
ENDED = ["2<|im_end|>\n", "4<|im_end|>\n"]


def tokenizer(template: str) -> Any:
    loaded = load_tokenizer(str(ROOT / "slime_events" / "app" / "demo" / "base"))
    loaded.chat_template = template
    return loaded


def masked(kind: str, template: str, chat: Any = CHAT, tools: Any = None) -> tuple[str, list[str]]:
    """(the text of all tokens, that of each trained run)."""
    chat_tokenizer = tokenizer(template)
    masks = MultiTurnLossMaskGenerator(chat_tokenizer, kind)
    tokens, mask = masks.get_loss_mask(chat, tools)
    assert len(tokens) == len(mask)
    assert set(mask) <= {0, 1}
    return chat_tokenizer.decode(tokens), masks.get_text_from_loss_mask(tokens, mask)


def rendered(template: str, chat: Any = CHAT, **more: Any) -> str:
    return str(tokenizer(template).apply_chat_template(chat, tokenize=False, **more))


@pytest.mark.parametrize(
    ("kind", "template"),
    list(itertools.product(("qwen", "qwen3", "qwen3_5"), (CHATML, DEFAULT_SYSTEM))),
)
@pytest.mark.parametrize("system", [False, True])
def test_the_answers_are_trained_and_nothing_else(kind: str, template: str, system: bool) -> None:
    chat = [{"role": "system", "content": "Be short."}, *CHAT] if system else CHAT
    text, trained = masked(kind, template, chat)
    assert trained == ENDED
    assert text == rendered(template, chat)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
def test_an_opening_think_is_no_target_where_the_whole_chat_is_rendered(kind: str) -> None:
    text, trained = masked(kind, THINKS)
    if kind == "qwen3_5":
        assert text == rendered(THINKS)
        assert trained == [ENDED[0], "\n</think>\n\n" + ENDED[1]]
    else:  # each message is the last one where it is rendered
        assert trained == ["<think>\n\n</think>\n\n" + ended for ended in ENDED]


@pytest.mark.parametrize("kind", ["qwen", "qwen3", "qwen3_5"])
def test_a_step_may_be_left_out(kind: str) -> None:
    chat = [CHAT[0], CHAT[1] | {"step_loss_mask": 0}, *CHAT[2:]]
    assert masked(kind, CHATML, chat) == (rendered(CHATML), ENDED[1:])


def test_tools_stand_in_front_of_the_first_message_alone() -> None:
    tools = [{"name": "calc"}]
    for kind in ("qwen3", "qwen3_5"):
        assert masked(kind, WITH_TOOLS, tools=tools) == (rendered(WITH_TOOLS, tools=tools), ENDED)


ONE_TURN_OF_TOOLS = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<r>' + m['content'] + '</r>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("kind", ["qwen", "qwen3", "qwen3_5"])
def test_results_of_tools_that_follow_each_other_are_one_turn(kind: str) -> None:
    tools = [{"role": "tool", "content": str(number)} for number in range(3)]
    chat = [*CHAT[:2], *tools[:2], CHAT[3], CHAT[2], tools[2], CHAT[3], CHAT[3]]
    text, trained = masked(kind, ONE_TURN_OF_TOOLS, chat)
    assert text == rendered(ONE_TURN_OF_TOOLS, chat)
    assert trained == [ENDED[0], ENDED[1], ENDED[1], ENDED[1]]


@pytest.mark.parametrize(("mask", "trained"), [(1, True), (0, False), (2, False)])
def test_a_step_is_trained_where_its_mask_is_one(mask: int, trained: bool) -> None:
    for kind in ("qwen", "qwen3_5"):
        _, runs = masked(kind, CHATML, [CHAT[0], CHAT[1] | {"step_loss_mask": mask}])
        assert runs == (ENDED[:1] if trained else [])


def test_texts_of_trained_runs_are_apart() -> None:
    masks = MultiTurnLossMaskGenerator(tokenizer(CHATML), "qwen")
    with pytest.raises(ValueError, match="shorter"):
        masks.get_text_from_loss_mask([1, 2], [1])
    ids = masks.tokenizer.encode("a b c d", add_special_tokens=False)
    for mask, runs in (([1, 0] * len(ids), (len(ids) + 1) // 2), ([1] * len(ids), 1), ([0] * len(ids), 0)):
        assert len(masks.get_text_from_loss_mask(ids, mask[: len(ids)])) == runs


@pytest.mark.parametrize("template", ["{{ messages[0]['content'] }}", "{{ '<|im_start|>assistant\n' }}"])
def test_a_template_that_hides_an_answer_is_an_error(template: str) -> None:
    masks = MultiTurnLossMaskGenerator.__new__(MultiTurnLossMaskGenerator)
    masks.tokenizer = tokenizer(template)
    with pytest.raises(DataError):
        masks.gen_multi_turn_loss_mask_qwen3_5(CHAT)


def test_a_distilled_model_is_trained_on_the_last_text_as_it_is() -> None:
    text, trained = masked("distill_qwen", DISTILLS, CHAT[:2])
    assert (text, trained) == ("<|User|>1+1<|Assistant|>2", ["2"])
    text, trained = masked("distill_qwen", DISTILLS, [CHAT[0], CHAT[1] | {"step_loss_mask": 0}])
    assert trained == []
    chat_tokenizer = tokenizer(DISTILLS)
    chat_tokenizer.get_added_vocab = lambda: {DISTILLED: 1}
    assert MultiTurnLossMaskGenerator(chat_tokenizer, "qwen").tokenizer_type == "distill_qwen"


def test_slime_s_name_and_its_lengths() -> None:
    own = load_function("slime.utils.mask_utils.MultiTurnLossMaskGenerator")
    masks = own(tokenizer(CHATML), tokenizer_type="qwen")
    assert masks.get_response_lengths([[0, 1, 1, 0, 1], [0, 0], [1]]) == [4, 0, 1]
    with pytest.raises(ValueError, match="qwen9"):
        own(tokenizer(CHATML), "qwen9")


def example(fields: dict[str, Any], **data: Any) -> Prompt | Problem:
    return make_prompt(fields, DataSettings(supervised=True, input_key="messages", **data), tokenizer(CHATML), 40)


def test_a_prompt_ends_before_the_first_trained_token() -> None:
    prompt = example({"messages": CHAT})
    assert isinstance(prompt, Prompt)
    assert prompt.text == "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.tokens is not None
    assert prompt.tokens.tolist() == tokenizer(CHATML).encode(prompt.text, add_special_tokens=False)
    assert prompt.messages == CHAT


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("1+1", BadReason.WRONG_TYPE),
        ([{"role": "user"}], BadReason.WRONG_TYPE),
        (CHAT[:1], BadReason.EMPTY_PROMPT),
        ([CHAT[0], CHAT[1] | {"step_loss_mask": 0}], BadReason.EMPTY_PROMPT),
        ([CHAT[0] | {"content": "1+1" * 40}, CHAT[1]], BadReason.TOO_LONG),
    ],
)
def test_a_chat_without_anything_to_train_on_is_a_bad_row(messages: Any, reason: BadReason) -> None:
    problem = example({"messages": messages})
    assert isinstance(problem, Problem)
    assert problem.reason is reason


def test_the_first_rows_are_checked_without_a_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n')
    check_first_rows(DataSettings(prompt_data=str(file), input_key="messages", supervised=True))
    with pytest.raises(DataError, match="no field 'input'"):
        check_first_rows(DataSettings(prompt_data=str(file), supervised=True))
