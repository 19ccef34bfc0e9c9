"""Test what an engine refuses, and which of its answers are not believed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import EngineError, InvalidValue
from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engines.checks import check_request, check_sampling, checked
from serve_apps.engines.engine import Delta, GenerateRequest, sampling_params
from serve_apps.rollouts.rollout import ChunkRule, Rollout, RolloutContext, stream
from slime_events.core.tokens.trajectory import Trajectory
from tests import made

REQUEST = made.requested(prompt=[1, 2], max_new_tokens=9)


def delta(tokens: list[int], log_probs: list[float], finish: StopReason | None = None) -> Delta:
    spans = (WeightSpan(0, len(tokens), 1),) if tokens else ()
    return Delta(np.array(tokens, np.int32), np.array(log_probs, np.float32), spans, finish, "text")


async def appended(*deltas: Delta) -> tuple[Exception | None, list[Any]]:
    """Return how a generation of these deltas ended, and what was appended."""

    async def generate(_: GenerateRequest) -> AsyncIterator[Delta]:
        for delta in deltas:
            yield delta

    chunks: list[Any] = []

    async def append(chunk: Any) -> int:
        chunks.append(chunk)
        return 3 + len(chunks)

    rollout = Rollout(REQUEST, Trajectory(REQUEST.sample, REQUEST.prompt, position=3), "e")
    context = RolloutContext(generate, ChunkRule(1, 1e9), "rid", AsyncMock(), lambda: False, AsyncMock())
    request = GenerateRequest("rid", np.array([1, 2], np.int32), REQUEST.sampling, 1)
    try:
        await stream(context, request, rollout, append)
    except EngineError as error:
        return error, chunks
    return None, chunks


async def test_a_step_that_is_aborted_without_log_probs_leaves_nothing() -> None:
    """SGLang ends so what it does not take, as a grammar that does not compile."""
    error, chunks = await appended(delta([7], [], StopReason.ABORT))
    assert "aborted" in str(error)
    assert chunks == []
    error, chunks = await appended(delta([5], [-1.0]), delta([7, 8], [-1.0], StopReason.ABORT))
    assert [chunk.tokens.n for chunk in chunks] == [1], "what was sampled before stays"


@pytest.mark.parametrize(
    "wrong",
    [
        delta([7], []),
        delta([7], [-1.0, -1.0]),
        delta([7], [-1.0, -1.0], StopReason.STOP),
    ],
)
async def test_what_could_never_be_read_again_is_not_appended(wrong: Delta) -> None:
    error, chunks = await appended(delta([5], [-1.0]), wrong)
    assert error is not None
    assert [chunk.tokens.n for chunk in chunks] == [1]


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(("token", "log_prob"), [(-1, -1.0), (264, -1.0), (7, float("nan")), (7, float("-inf"))])
def test_an_answer_that_cannot_be_trained_on_is_an_error_of_the_engine(token: int, log_prob: float, count: int) -> None:
    fine = [3] * (count - 1), [-1.0] * (count - 1)
    assert len(checked(delta([*fine[0], 3], [*fine[1], -1.0]), 264, "r").tokens) == count
    with pytest.raises(EngineError):
        checked(delta([*fine[0], token], [*fine[1], log_prob]), 264, "r")


def test_an_id_that_an_engine_samples_beyond_the_model_is_no_token() -> None:
    """A padded vocabulary has rows that no trainer has."""
    assert checked(delta([263], [-1.0]), 264, "r").tokens.tolist() == [263]
    with pytest.raises(EngineError, match="token 264 is not in the model's vocabulary of 264"):
        checked(delta([264], [-1.0]), 264, "r")


def sampling(**fields: Any) -> Sampling:
    known_fields = {name: value for name, value in fields.items() if name in Sampling.__struct_fields__}
    more = {name: value for name, value in fields.items() if name not in known_fields}
    return Sampling(**({"max_new_tokens": 8, "more": more} | known_fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"min_new_tokens": 9},
        {"min_new_tokens": -1},
        {"max_new_tokens": -1},
        {"max_new_tokens": 2**31},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"top_k": 2**40},
        {"stop": tuple(f"s{n}" for n in range(33))},
        {"stop": ("",)},
        {"stop": ("\ud800",)},
        {"stop_token_ids": (264,)},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": (2**31 - 1,)},
        {"min_p": 2},
        {"min_p": "0.5"},
        {"frequency_penalty": 3},
        {"presence_penalty": -3},
        {"repetition_penalty": 0},
        {"repetition_penalty": True},
        {"ignore_eos": "yes"},
        {"regex": 3},
        {"regex": "\ud800"},
        {"regex": "a", "ebnf": "b"},
        {"stop_regex": ["("]},
        {"stop_regex": ["a"] * 33},
        {"stop_regex": "a" * 257},
        {"stop_regex": 3},
        {"logit_bias": {"264": 1.0}},
        {"logit_bias": {"x": 1.0}},
        {"logit_bias": {"-1": 1.0}},
        {"logit_bias": {"1": "a"}},
        {"logit_bias": {"1": float("inf")}},
        {"logit_bias": {"9" * 30: 1.0}},
        {"logit_bias": [1]},
    ],
)
def test_what_an_engine_refuses_or_dies_of_is_refused_before(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(fields))):
        check_sampling(sampling(**fields), 264)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.integers(), st.floats(), st.text(max_size=3),
    st.lists(st.text(max_size=2), max_size=40), st.dictionaries(st.text("0123456789x-", max_size=4), st.floats()),
)  # fmt: skip
NAMES = (
    "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "stop_regex", "logit_bias",
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    st.floats(), st.floats(), st.integers(-3, 2**33), st.integers(-2, 12), st.lists(st.text(max_size=3), max_size=40),
)  # fmt: skip
def test_sglang_takes_what_is_let_through(
    more: dict[str, Any], temperature: float, top_p: float, top_k: int, least: int, stop: list[str]
) -> None:
    sampling_ = Sampling(8, temperature, top_p, top_k, tuple(stop), more=more, min_new_tokens=least)
    try:
        check_sampling(sampling_, 264)
    except InvalidValue:
        return
    from sglang.srt.sampling.sampling_params import SamplingParams

    taken = SamplingParams(**sampling_params(sampling_))
    taken.verify(264)


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest("r", np.array([1, 264], np.int32), Sampling(8), 1),
        GenerateRequest("r", np.array([-1], np.int32), Sampling(8), 1),
        GenerateRequest("r", np.array([1], np.int32), Sampling(8), 1, np.array([264], np.int32)),
        GenerateRequest("r", np.array([1], np.int32), Sampling(8), 2**63),
        GenerateRequest("r", np.array([1], np.int32), Sampling(8), 1, payload={"token_ids_logprob": [264]}),
        GenerateRequest("r", np.array([1], np.int32), Sampling(8), 1, payload={"token_ids_logprob": ["a"]}),
    ],
)
def test_a_request_with_foreign_ids_reaches_no_engine(request_: GenerateRequest) -> None:
    with pytest.raises(InvalidValue):
        check_request(request_, 264)
