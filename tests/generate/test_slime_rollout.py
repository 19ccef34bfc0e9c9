"""slime's `generate`, `generate_and_rm` and their group on a session of one's own, and what its paths answer."""

from __future__ import annotations

import copy
import importlib
import urllib.error
from collections.abc import Iterator
from contextvars import Token
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import PlugPointError
from schemas.rollouts import Sampling, StopReason
from serve_apps.rollouts.generate.session import CURRENT, Session, Turn
from serve_apps.rollouts.generate.slime import requests
from serve_apps.rollouts.generate.slime.requests import (
    UnknownPath,
    answer,
    get,
    get_json,
    get_model_url,
    post,
    post_json,
)
from serve_apps.rollouts.generate.slime.rollout import abort, generate, generate_and_rm, generate_and_rm_group
from slime_events.plugins.loader import name_of
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.slime.aliases import install_slime_aliases

install_slime_aliases()


class Engine:
    """A session: each turn is one token, 7, with the stop reason that is next."""

    args = SimpleNamespace(hf_checkpoint="model")
    sampling, tokenizer, aborted = Sampling(max_new_tokens=2), None, False
    router_port = 4321

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.stops: list[StopReason] = []
        self.of_function = True
        self.aborts = 0

    def tokenize(self, prompt: str) -> list[int]:
        return [ord(letter) for letter in prompt]

    async def generate(self, prompt: Any, params: Any = None, payload: Any = None) -> Turn:
        self.calls.append((list(prompt) if isinstance(prompt, list) else prompt, params, payload))
        stop = self.stops.pop(0) if self.stops else StopReason.STOP
        return Turn(len(self.calls) - 1, [1], [7], [-0.5], "g", stop, (3,))

    async def call(self, tool: Any, arguments: dict[str, Any], *, may_repeat: bool) -> Any:
        return tool.__name__, arguments, may_repeat

    async def abort(self) -> None:
        self.aborts += 1


@pytest.fixture
def engine() -> Iterator[Engine]:
    own_engine: Any = Engine()
    before: Token[Session] = CURRENT.set(own_engine)
    yield own_engine
    CURRENT.reset(before)


class Graders:
    """slime's hub of graders, which notes what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        hub = importlib.import_module("slime.rollout.rm_hub")
        monkeypatch.setattr(hub, "async_rm", self.one_reward)
        monkeypatch.setattr(hub, "batched_async_rm", self.several)

    async def one_reward(self, args: Any, sample: Sample) -> float:
        self.calls.append(sample.index)
        return 0.5

    async def several(self, args: Any, samples: list[Sample]) -> list[float]:
        self.calls.append([sample.index for sample in samples])
        return [float(place) for place, _ in enumerate(samples)]


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> Graders:
    return Graders(monkeypatch)


def arguments(**fields: Any) -> Any:
    return SimpleNamespace(**{"custom_generate_function_path": None, "rollout_sample_hook_path": []} | fields)


async def several(args: Any, sample: Sample, params: Any) -> list[Sample]:
    """A generate function that makes two samples, one of them graded."""
    return [sample, Sample(index=9, reward=3.0)]


async def graded(args: Any, sample: Sample, params: Any, *, evaluation: bool, session: Any) -> Sample:
    """Grade, and record whether it is an evaluation."""
    sample.reward, sample.metadata = 2.0, {"evaluation": evaluation, "of_function": session.of_function}
    return sample


def hook(args: Any, sample: Sample, *, evaluation: bool) -> None:
    sample.metadata["hooked"] = evaluation


async def test_a_turn_is_appended_and_the_rest_of_its_room_goes_on(engine: Engine) -> None:
    sample = Sample(prompt="ab")
    engine.stops = [StopReason.LENGTH]
    params = {"max_new_tokens": 2, "top_p": 0.5}
    assert await generate(None, sample, params) is sample
    await generate(None, sample, params)
    assert engine.calls == [
        ([97, 98], {"max_new_tokens": 2, "top_p": 0.5}, None), ([97, 98, 7], {"max_new_tokens": 1, "top_p": 0.5}, None)
    ]  # fmt: skip
    assert (sample.tokens, sample.status, params["max_new_tokens"]) == ([97, 98, 7, 7], Status.COMPLETED, 2)
    await generate(None, sample, params)
    assert (len(engine.calls), sample.status) == (2, Status.TRUNCATED)


async def test_a_sample_is_made_and_graded(engine: Engine, graders: Graders) -> None:
    sample = Sample(index=4, prompt="a")
    assert await generate_and_rm(arguments(), sample, {"max_new_tokens": 2}) is sample
    assert (sample.reward, graders.calls) == (0.5, [4])


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.TRUNCATED])
async def test_a_finished_sample_is_left_as_it_is(engine: Engine, graders: Graders, status: Status) -> None:
    sample = Sample(status=status)
    assert await generate_and_rm(arguments(), sample, {"max_new_tokens": 2}) is sample
    assert (engine.calls, graders.calls, sample.reward) == ([], [], None)


async def test_an_aborted_or_graded_sample_is_not_graded(engine: Engine, graders: Graders) -> None:
    engine.stops = [StopReason.ABORT]
    sample = await generate_and_rm(arguments(), Sample(prompt="a"), {"max_new_tokens": 2})
    assert isinstance(sample, Sample)
    assert (sample.status, sample.reward) == (Status.ABORTED, None)
    own = Sample(generate_function_path=f"{__name__}:graded")
    assert await generate_and_rm(arguments(), own, {}, evaluation=True) is own
    assert (own.reward, own.metadata, graders.calls) == (2.0, {"evaluation": True, "of_function": True}, [])


async def test_several_samples_are_graded_together(engine: Engine, graders: Graders) -> None:
    samples = await generate_and_rm(arguments(custom_generate_function_path=f"{__name__}:several"), Sample(index=1), {})
    assert isinstance(samples, list)
    assert ([sample.reward for sample in samples], graders.calls) == ([0.0, 3.0], [[1]])


async def test_the_run_s_function_and_hooks_are_a_rollout_function_s(engine: Engine, graders: Graders) -> None:
    args = arguments(custom_generate_function_path=f"{__name__}:graded", rollout_sample_hook_path=[f"{__name__}:hook"])
    first = await generate_and_rm(args, Sample(prompt="a"), {"max_new_tokens": 1})
    engine.of_function = False
    second = await generate_and_rm(args, Sample(prompt="a"), {"max_new_tokens": 1})
    assert isinstance(first, Sample)
    assert isinstance(second, Sample)
    assert (first.reward, first.metadata.get("hooked")) == (2.0, False)
    assert (second.reward, second.metadata) == (0.5, {})


async def test_a_group_is_made_side_by_side(engine: Engine, graders: Graders) -> None:
    group = [Sample(index=place, prompt="a") for place in range(2)]
    params = {"max_new_tokens": 1}
    assert await generate_and_rm_group(arguments(), group, params) == group
    assert ([member.reward for member in group], graders.calls) == ([0.5, 0.5], [0, 1])


async def test_flags_that_args_do_not_have_are_off(engine: Engine, graders: Graders) -> None:
    before: dict[str, Any] = {"tokens": [97, 7], "response_length": 1, "rollout_log_probs": [-1.0]}
    group = [Sample(index=place, prompt="a", **copy.deepcopy(before)) for place in range(2)]
    assert await generate_and_rm_group(SimpleNamespace(), group, {"max_new_tokens": 4}) == group
    assert [params for _, params, _ in engine.calls] == [{"max_new_tokens": 3}] * 2
    assert [member.loss_mask for member in group] == [[1, 1], [1, 1]], "what it has is trained on"
    assert ([member.reward for member in group], graders.calls) == ([0.5, 0.5], [0, 1])


async def test_a_grader_of_groups_sees_all_of_them_at_once(engine: Engine, graders: Graders) -> None:
    group = [Sample(index=place, prompt="a") for place in range(2)]
    group_ = await generate_and_rm_group(arguments(group_rm=True), group, {"max_new_tokens": 1})
    assert (group_, [member.reward for member in group], graders.calls) == (group, [0.0, 1.0], [[0, 1]])
    graders.calls.clear()
    engine.stops = [StopReason.STOP, StopReason.ABORT]
    aborted = [Sample(index=place, prompt="a") for place in range(2)]
    await generate_and_rm_group(arguments(group_rm=True), aborted, {"max_new_tokens": 1})
    assert (graders.calls, [member.reward for member in aborted]) == ([], [None, None])
    assert await generate_and_rm_group(arguments(group_rm=True), [], {}) == []


async def test_rewards_are_one_for_each_sample(
    engine: Engine, graders: Graders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fewer(args: Any, samples: list[Sample]) -> list[float]:
        return [1.0]

    monkeypatch.setattr(importlib.import_module("slime.rollout.rm_hub"), "batched_async_rm", fewer)
    with pytest.raises(ValueError, match="shorter"):
        await generate_and_rm_group(
            arguments(group_rm=True), [Sample(prompt="a"), Sample(prompt="a")], {"max_new_tokens": 1}
        )


async def test_abort_ends_what_the_session_makes(engine: Engine) -> None:
    assert await abort(None, 0) == []
    assert engine.aborts == 1


async def test_paths_of_the_router_are_answered(engine: Engine) -> None:
    own: Any = engine
    assert await answer(own, "GET", "/health", {}) == await answer(own, "GET", "/health_generate", {}) == {}
    info = {"model_path": "model", "tokenizer_path": "model", "is_generation": True}
    assert await answer(own, "GET", "/model_info", {}) == await answer(own, "POST", "/get_model_info", {}) == info
    models = await answer(own, "GET", "/v1/models", {})
    assert [model["id"] for model in models["data"]] == ["model"]
    for method, path in (("GET", "/generate"), ("POST", "/v1/chat/completions")):
        with pytest.raises(UnknownPath):
            await answer(own, method, path, {})


async def test_a_request_is_a_turn_and_a_list_of_prompts_several(engine: Engine) -> None:
    own: Any = engine
    payload = {"input_ids": [1, 2], "sampling_params": {"top_p": 0.5}, "image_data": "x", "rid": "r", "none": None}
    body = await answer(own, "POST", "/generate", payload | {"return_logprob": True})
    assert (body["text"], body["output_ids"], body["meta_info"]["id"]) == ("g", [7], "0")
    assert body["meta_info"]["output_token_logprobs"] == [(-0.5, 7, None)]
    assert engine.calls == [([1, 2], {"top_p": 0.5}, {"image_data": "x"})]
    both = await answer(own, "POST", "/generate", {"text": ["a", "b"], "sampling_params": [{"n": 1}, {}]})
    assert (len(both), "output_token_logprobs" in both[0]["meta_info"]) == (2, False)
    assert engine.calls[1:] == [("a", {"n": 1}, {}), ("b", {}, {})]
    await answer(own, "POST", "/generate", {"input_ids": [[1], [2]], "sampling_params": {"n": 1}})
    assert engine.calls[3:] == [([1], {"n": 1}, {}), ([2], {"n": 1}, {})]
    await answer(own, "POST", "/generate", {"input_ids": []})
    assert engine.calls[5:] == [([], None, {})]


@pytest.mark.parametrize(
    "payload",
    [[], {}, None, {"text": "a", "stream": True}, {"text": ["a", "b"], "sampling_params": [{}]}],
)
async def test_a_request_that_cannot_be_answered_is_refused(engine: Engine, payload: Any) -> None:
    own: Any = engine
    with pytest.raises(PlugPointError):
        await answer(own, "POST", "/generate", payload)
    assert engine.calls == []


async def test_other_addresses_are_tools_that_may_be_called_again(engine: Engine) -> None:
    url = get_model_url(SimpleNamespace(sglang_router_ip="127.0.0.1", sglang_router_port=4321), "model")
    assert (url, get_model_url(SimpleNamespace(sglang_router_ip="h", sglang_router_port=1), "m", "/x")) == (
        "http://127.0.0.1:4321/generate", "http://h:1/x"
    )  # fmt: skip
    assert (await post(url, {"text": "a"}))["text"] == "g"
    assert await get("http://127.0.0.1:4321/health") == {}
    other = {"url": "http://127.0.0.1:4322/x", "payload": {}, "max_retries": 60}
    assert await post(other["url"], None) == ("post_json", other, True)
    assert await post("http://host:4321/x", {"a": 1}, 2) == (
        "post_json", {"url": "http://host:4321/x", "payload": {"a": 1}, "max_retries": 2}, True
    )  # fmt: skip
    assert await get("http://host/x") == ("get_json", {"url": "http://host/x"}, True)


@pytest.mark.parametrize(("fails", "retries", "answers"), [(0, 1, True), (2, 3, True), (3, 3, False), (0, 0, False)])
async def test_a_call_is_made_again_so_often(
    monkeypatch: pytest.MonkeyPatch, fails: int, retries: int, answers: bool
) -> None:
    calls: list[Any] = []
    waited: list[float] = []

    def call(url: str, payload: Any, headers: dict[str, str]) -> Any:
        assert headers == {}
        calls.append(payload)
        if len(calls) <= fails:
            raise urllib.error.URLError("away")
        return "said"

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(requests, "_post_json", call)
    monkeypatch.setattr(requests.asyncio, "sleep", wait)
    if answers:
        assert await post_json("http://h", {"a": 1}, retries) == "said"
    else:
        with pytest.raises((urllib.error.URLError, PlugPointError)):
            await post_json("http://h", {"a": 1}, retries)
    assert len(calls) == min(fails + 1, retries)
    assert len(waited) == (fails if answers else max(0, retries - 1))


def test_requests_have_the_names_that_logs_have() -> None:
    assert name_of(post_json) == "serve_apps.rollouts.generate.slime_compat:post_json"
    assert name_of(get_json) == "serve_apps.rollouts.generate.slime_compat:get_json"


async def test_outside_of_a_run_both_are_plain_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def posted(url: str, payload: Any, retries: int, headers: Any) -> Any:
        return "posted", url, payload, retries, headers

    async def got(url: str) -> Any:
        return "got", url

    monkeypatch.setattr(requests, "post_json", posted)
    monkeypatch.setattr(requests, "get_json", got)
    assert await post("http://h:1/x", None, 3, {"a": "b"}) == ("posted", "http://h:1/x", {}, 3, {"a": "b"})
    assert await get("http://h:1/x") == ("got", "http://h:1/x")
    for url in ("http://127.0.0.1:0/generate", "http://127.0.0.1:0/health"):
        with pytest.raises(PlugPointError):
            await (post(url, {}) if url.endswith("generate") else get(url))


@pytest.mark.parametrize(
    ("masks", "length", "mask"), [(True, 0, None), (True, 1, [0]), (True, 2, [0, 0]), (False, 2, None)]
)
async def test_what_a_sample_has_from_before_is_masked_where_that_is_asked_for(
    engine: Engine, masks: bool, length: int, mask: list[int] | None
) -> None:
    args = arguments(partial_rollout=True, mask_offpolicy_in_partial_rollout=masks)
    sample = Sample(generate_function_path=f"{__name__}:graded", response_length=length)
    await generate_and_rm(args, sample, {})
    assert sample.loss_mask == mask
    other = Sample(generate_function_path=f"{__name__}:graded", response_length=length)
    await generate_and_rm(arguments(mask_offpolicy_in_partial_rollout=masks), other, {})
    assert other.loss_mask is None


async def test_an_engine_behind_a_router_is_asked_for_log_probs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    async def posted(url: str, payload: Any, headers: Any) -> Any:
        sent.append((url, payload, headers))
        meta = {"output_token_logprobs": [[-0.5, 7, None]], "finish_reason": {"type": "stop"}}
        return {"text": "g", "meta_info": meta}

    home = importlib.import_module("slime.rollout.sglang_rollout")
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: [1] * add_special_tokens + list(map(ord, text)))
    monkeypatch.setattr(home, "post", posted)
    monkeypatch.setattr(home, "GenerateState", lambda args: SimpleNamespace(tokenizer=tokenizer))
    args = SimpleNamespace(sglang_router_ip="h", sglang_router_port=1)
    sample = await generate(args, Sample(prompt="ab", session_id="s"), {"max_new_tokens": 3})
    params = {"sampling_params": {"max_new_tokens": 3}, "return_logprob": True, "input_ids": [97, 98]}
    assert sent == [("http://h:1/generate", params, None)]
    assert (sample.tokens, sample.rollout_log_probs, sample.response) == ([97, 98, 7], [-0.5], "g")
    args.use_rollout_routing_replay, args.router_policy = True, "consistent_hashing"
    await generate(args, sample, {"max_new_tokens": 3})
    _, payload, headers = sent[1]
    assert payload["return_routed_experts"] is True
    assert (payload["input_ids"], payload["sampling_params"]) == ([97, 98, 7], {"max_new_tokens": 2})
    assert headers == {"X-SMG-Routing-Key": "s"}
