"""A call of `sample`: which are refused, and what the engines are asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.errors import InvalidValue
from schemas.event import Purpose
from schemas.rollouts import RolloutRequested
from serve_apps.http.tinker.names import Samples
from serve_apps.http.tinker.sampling import SampleRequest, check, sample_requests

VOCABULARY, LONGEST = 16, 8
SAMPLES = Samples("call-3-0123456789abcdef", 2)


def call(*tokens: int, params: dict[str, Any] | None = None, **more: Any) -> SampleRequest:
    prompt = {"chunks": [{"tokens": list(tokens)}]}
    return msgspec.convert({"prompt": prompt, "sampling_params": params or {}, **more}, SampleRequest)


def prompt_of(request: SampleRequest) -> list[int]:
    return check(request, vocabulary=VOCABULARY, longest=LONGEST)


def requests(request: SampleRequest, seed: int = 5) -> list[RolloutRequested]:
    return sample_requests(SAMPLES, prompt_of(request), request, version=3, seed=seed, longest=LONGEST)


def test_a_prompt_is_all_its_chunks() -> None:
    chunks = [{"tokens": [1, 2]}, {"tokens": [3], "type": "encoded_text"}]
    request = msgspec.convert({"prompt": {"chunks": chunks}, "sampling_params": {}}, SampleRequest)
    assert prompt_of(request) == [1, 2, 3]


@pytest.mark.parametrize(
    "body",
    [
        call(1, topk_prompt_logprobs=1),
        call(1, topk_sample_logprobs=1),
        call(1, target_prompt_logprobs=[1]),
        call(1, prompt_alt_tokens_k=1),
        call(),
        call(*range(1, LONGEST + 1)),
        call(VOCABULARY),
        call(-1),
        call(1, num_samples=0),
        call(1, num_samples=1025),
        call(1, params={"temperature": -0.1}),
        call(1, params={"top_p": 0.0}),
        call(1, params={"top_p": 1.1}),
        call(1, params={"top_k": 0}),
        call(1, params={"top_k": -2}),
        call(1, params={"max_tokens": 0}),
        call(1, params={"stop": [VOCABULARY]}),
        call(1, params={"stop": [""]}),
    ],
    ids=str,
)
def test_what_no_engine_makes_is_refused(body: SampleRequest) -> None:
    with pytest.raises(InvalidValue):
        prompt_of(body)


def test_images_are_refused() -> None:
    chunks = [{"tokens": [1]}, {"tokens": [2], "type": "image"}]
    with pytest.raises(InvalidValue):
        prompt_of(msgspec.convert({"prompt": {"chunks": chunks}, "sampling_params": {}}, SampleRequest))


@pytest.mark.parametrize(
    "body",
    [
        call(*range(LONGEST - 1)),
        call(VOCABULARY - 1),
        call(1, num_samples=1),
        call(1, num_samples=1024),
        call(1, params={"temperature": 0.0}),
        call(1, params={"temperature": 0.5, "top_p": 1.0, "top_k": 1}),
        call(1, params={"top_p": 0.01, "top_k": -1}),
        call(1, params={"max_tokens": 1}),
        call(1, params={"max_tokens": 10**9}),
        call(1, prompt_logprobs=True, prompt_logprobs_last_n=2),
    ],
    ids=str,
)
def test_what_engines_make_is_taken(body: SampleRequest) -> None:
    assert prompt_of(body) == list(body.prompt.chunks[0].tokens)
    assert body.num_samples >= 1


def test_nothing_said_is_one_sample_of_everything_that_is_likely() -> None:
    sample_call = call(1)
    (first, _) = requests(sample_call)
    assert sample_call.num_samples == 1
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, -1)
    assert (first.sampling.stop, first.sampling.stop_token_ids, first.sampling.more) == ((), (), {})
    assert first.sampling.max_new_tokens == LONGEST - 1


def test_each_sample_is_asked_for_on_the_client_s_weights() -> None:
    sample_call = call(1, 2, params={"temperature": 0.5, "top_p": 0.9, "top_k": 4, "max_tokens": 3})
    requested = requests(sample_call)
    assert [request.sample for request in requested] == SAMPLES.ids
    assert [request.index for request in requested] == [0, 1]
    for request in requested:
        assert (request.group, request.purpose) == (SAMPLES.group, Purpose.CALL)
        assert (request.min_version, request.max_version) == (3, 3)
        assert unpack(request.prompt).tolist() == [1, 2]
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (0.5, 0.9, 4, 3)
        assert request.payload == {}


def test_only_the_first_sample_scores_the_prompt() -> None:
    first, second = requests(call(1, prompt_logprobs=True))
    assert first.payload == {"logprob_start_len": 0}
    assert second.payload == {}


@settings(max_examples=30)
@given(st.integers(1, LONGEST - 1), st.none() | st.integers(1, 2 * LONGEST))
def test_prompt_and_answer_have_room(length: int, most: int | None) -> None:
    (first, _) = requests(call(*([1] * length), params={} if most is None else {"max_tokens": most}))
    left = LONGEST - length
    assert first.sampling.max_new_tokens == (left if most is None else min(left, most))


@pytest.mark.parametrize(
    ("stop", "texts", "ids", "more"),
    [
        ("x", ("x",), (), {}),
        (["x", 3], ("x",), (3,), {}),
        (None, (), (), {}),
        ([], (), (), {"ignore_eos": True}),
    ],
)
def test_where_an_answer_stops(stop: Any, texts: Any, ids: Any, more: Any) -> None:
    (first, _) = requests(call(1, params={"stop": stop}))
    assert (first.sampling.stop, first.sampling.stop_token_ids, first.sampling.more) == (texts, ids, more)


def test_a_seed_of_the_client_s_makes_the_same_again_whatever_the_call() -> None:
    sample_call = call(1, params={"seed": 0})
    other = Samples("call-4-0123456789abcdef", 2)
    again = sample_requests(other, [1], sample_call, version=4, seed=9, longest=LONGEST)
    seeds = [each.seed for each in requests(sample_call)]
    assert [request.seed for request in again] == seeds
    assert len(set(seeds)) == 2
    assert [each.seed for each in requests(call(1, params={"seed": 1}))] != seeds


def test_without_one_each_call_is_another_by_the_run_s_seed() -> None:
    sample_call = call(1)
    seeds = [each.seed for each in requests(sample_call)]
    assert [each.seed for each in requests(sample_call)] == seeds
    other = sample_requests(Samples("call-4-0123456789abcdef", 2), [1], sample_call, version=3, seed=5, longest=LONGEST)
    assert not set(seeds) & {request.seed for request in other}
    assert not set(seeds) & {each.seed for each in requests(sample_call, seed=6)}
