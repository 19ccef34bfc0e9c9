"""`Sample`: the answer in its response, what is appended to it, and what engines counted for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from schemas.errors import PlugPointError
from slime_events.plugins.sample import LONGEST, Sample, own_attributes, without_end
from slime_events.plugins.sample_info import PrefixCacheInfo, SpecInfo

LONG = f"<|{'a' * (LONGEST - 4)}|>"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("", ""),
        (" \n", ""),
        ("a", "a"),
        ("why</think> b c \n", "b c"),
        ("a</think>b</think>c", "c"),
        ("b<|im_end|>\n", "b"),
        ("b<|im_end|> <|endoftext|>", "b"),
        ("<|im_end|>", ""),
        ("</s>", ""),
        ("b</s></s>", "b"),
        ("b<eos>", "b"),
        ("b<end_of_turn>", "b"),
        ("b[EOS]", "b"),
        ("b<｜end▁of▁sentence｜>", "b"),
        ("b</s> c", "b</s> c"),
        ("b<||>", "b<||>"),
        ("b<|a b|>", "b<|a b|>"),
        ("a word of b|>", "a word of b|>"),
        ("|>", "|>"),
        ("b>", "b>"),
        ("b]", "b]"),
        (f"{'word ' * 20}{LONG}", ("word " * 20).strip()),
        (f"{'word ' * 20}{LONG[:2]}a{LONG[2:]}", f"{'word ' * 20}{LONG[:2]}a{LONG[2:]}"),
    ],
)
def test_an_answer_is_without_thinking_and_end_tokens(response: str, answer: str) -> None:
    assert Sample(response=response).answer == answer


def test_blanks_at_the_end_go_with_the_end_token_and_others_stay() -> None:
    assert without_end(" a \n<|im_end|>\n") == " a"


def test_what_is_appended_keeps_mask_and_log_probs_aligned() -> None:
    sample = Sample(tokens=[9])
    held = sample.tokens
    sample.append_response_tokens(tokens=[1, 2], log_probs=[-0.5, -0.25], text="ab")
    mask, log_probs = sample.loss_mask, sample.rollout_log_probs
    sample.append_response_tokens(tokens=np.array([3]), trainable=False, text="c")
    sample.append_response_tokens(text="d")
    sample.append_response_tokens(tokens=[4], log_probs=(-1,))
    assert (sample.tokens, sample.response, sample.response_length) == ([9, 1, 2, 3, 4], "abcd", 4)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0, 1], [-0.5, -0.25, 0.0, -1.0])
    assert sample.tokens is held
    assert (sample.loss_mask, sample.rollout_log_probs) == (mask, log_probs)
    assert sample.loss_mask is mask
    assert sample.rollout_log_probs is log_probs
    assert sample.effective_response_length == 3


def test_tokens_of_before_count_as_trained_where_there_is_no_mask() -> None:
    sample = Sample(tokens=(9, 1, 2), response_length=2)  # type: ignore[arg-type]
    assert sample.effective_response_length == 2
    sample.append_response_tokens(tokens=[3], trainable=False)
    assert (sample.tokens, sample.loss_mask) == ([9, 1, 2, 3], [1, 1, 0])
    assert sample.rollout_log_probs == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ({}, {"tokens": [1], "log_probs": [-1.0, -1.0]}),
        ({}, {"log_probs": [-1.0]}),
        ({}, {"tokens": [1]}),
        ({}, {"tokens": [1], "log_probs": [-1.0], "trainable": False}),
        ({"response_length": 1}, {"tokens": [1], "log_probs": [-1.0]}),
    ],
)
def test_a_bad_call_changes_nothing(before: dict[str, Any], call: dict[str, Any]) -> None:
    sample, meta = Sample(tokens=[9], **before), {"weight_version": 3}
    with pytest.raises(PlugPointError):
        sample.append_response_tokens(text="a", meta_info=meta, **call)
    assert sample == Sample(tokens=[9], **before)


@pytest.mark.parametrize(
    "call",
    [
        {"log_probs": []},
        {"log_probs": [], "trainable": False},
        {"tokens": [], "trainable": False},
        {"tokens": [1], "trainable": False},
    ],
)
def test_tokens_without_log_probs_may_follow_ones_without(call: dict[str, Any]) -> None:
    sample = Sample(tokens=[9, 8], response_length=1)
    sample.append_response_tokens(**call)
    assert sample.response_length == 1 + len(call.get("tokens", ()))


def test_trained_tokens_may_follow_ones_with_log_probs() -> None:
    sample = Sample(tokens=[9, 8], response_length=1, rollout_log_probs=[-2.0])
    sample.append_response_tokens(tokens=[1], log_probs=[-1.0])
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1], [-2.0, -1.0])


def test_each_generation_adds_its_version_and_says_how_it_ended() -> None:
    sample = Sample()
    sample.append_response_tokens(meta_info={"weight_version": 2, "finish_reason": {"type": "length"}})
    assert (sample.weight_versions, sample.status) == (["2"], Sample.Status.TRUNCATED)
    ended = {"finish_reason": {"type": "stop"}}
    sample.append_response_tokens(meta_info=ended, update_terminal_info=False)
    assert (sample.weight_versions, sample.status) == (["2"], Sample.Status.TRUNCATED)
    sample.append_response_tokens(meta_info={"finish_reason": {"type": "odd"}})
    sample.append_response_tokens(meta_info={"finish_reason": None})
    assert sample.status is Sample.Status.TRUNCATED
    sample.append_response_tokens(meta_info={**ended, "weight_version": "3"})
    assert (sample.weight_versions, sample.status) == (["2", "3"], Sample.Status.COMPLETED)


def test_drafts_are_counted_where_some_were_verified() -> None:
    sample, drafts = Sample(), {"spec_draft_token_num": 4, "completion_tokens": 3}
    sample.append_response_tokens(meta_info=drafts)
    assert sample.spec_info == SpecInfo()
    sample.append_response_tokens(meta_info=drafts | {"spec_verify_ct": 2})
    sample.append_response_tokens(meta_info=drafts | {"spec_verify_ct": 1})
    assert sample.spec_info == SpecInfo(0, 8, 3, 6)


@pytest.mark.parametrize(
    ("info", "rates"),
    [
        (SpecInfo(), (0.0, 0.0)),
        (SpecInfo(1, 1, 1, 3), (1.0, 3.0)),
        (SpecInfo(3, 4, 2, 5), (0.75, 2.5)),
    ],
)
def test_rates_of_drafts_are_shares(info: SpecInfo, rates: tuple[float, float]) -> None:
    assert (info.spec_accept_rate, info.spec_accept_length) == rates


@pytest.mark.parametrize(("cached", "total", "rate"), [(0, 0, 0.0), (1, 1, 1.0), (1, 4, 0.25)])
def test_the_rate_of_cached_tokens_is_a_share(cached: int, total: int, rate: float) -> None:
    assert PrefixCacheInfo(cached, total).prefix_cache_hit_rate == rate


def test_a_reward_is_the_number_or_its_entry() -> None:
    args, both = SimpleNamespace(reward_key="score"), {"score": 2.0, "other": 3.0}
    assert Sample(reward=1.0).get_reward_value(args) == 1.0
    assert Sample(reward=both).get_reward_value(args) == 2.0
    for without in (SimpleNamespace(reward_key=None), SimpleNamespace()):
        assert Sample(reward=both).get_reward_value(without) == both


def test_what_was_set_on_it_is_told_from_its_fields() -> None:
    sample = Sample(index=1)
    sample.calls = 3  # type: ignore[attr-defined]
    assert own_attributes(sample) == {"calls": 3}
    again = Sample.from_dict(sample.to_dict() | {"spec_info": None, "prefix_cache_info": None})
    assert (again, own_attributes(again)) == (Sample(index=1), {"calls": 3})
    assert again.to_dict() == sample.to_dict()
