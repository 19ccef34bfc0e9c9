"""A teacher that a reward function asks: what it is asked, what is made of its answer, and how that travels."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import pack_tokens, unpack
from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.rewards import RewardAssigned, RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.core.tokens.trajectory import Trajectories, Trajectory
from slime_events.plugins.rewards import remote
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import Graded, RewardFailure, outcome_event
from slime_events.plugins.rewards.teacher import graded, post_process_rewards
from slime_events.plugins.sample import Sample

NAME = "slime.rollout.on_policy_distillation.reward_func"


def answered(tokens: list[int], first: float = -0.5) -> dict[str, Any]:
    """Answer as `/generate` does with logprob_start_len 0: nothing of the first token."""
    scored = [[None, tokens[0], None], *([first - place / 8, token, None] for place, token in enumerate(tokens[1:]))]
    return {"text": "", "meta_info": {"prompt_tokens": len(tokens), "input_token_logprobs": scored}}


@pytest.fixture
async def teacher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0001)
    questions: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.Response:
        questions.append(await request.json())
        return web.json_response(answered(questions[-1]["input_ids"]))

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_post("/health", health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", questions
    await runner.cleanup()


def sample(**fields: Any) -> Sample:
    return Sample(tokens=[5, 6, 7, 8, 9], response="789", response_length=3, loss_mask=[1, 1, 1], **fields)


async def test_slime_s_reward_function_asks_the_engine_at_rm_url(teacher: tuple[str, list[dict[str, Any]]]) -> None:
    url, questions = teacher
    settings = RewardSettings(custom_rm_path=NAME, rm_url=f"{url}/generate")
    async with Dispatcher(settings) as graders:
        first, second = await graders.grade([sample(), sample()])
    assert len(questions) == 2
    assert questions[0] == {
        "input_ids": [5, 6, 7, 8, 9],
        "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    assert isinstance(first, Graded)
    assert isinstance(second, Graded)
    assert first.teacher_log_probs == second.teacher_log_probs
    assert first.teacher_log_probs is not None
    np.testing.assert_array_equal(unpack(first.teacher_log_probs), np.float32([-0.625, -0.75, -0.875]))
    assert (first.value, first.detail) == (0.0, {})
    assert first.grader_digest


async def test_a_server_that_is_no_engine_is_a_failure(teacher: tuple[str, list[dict[str, Any]]]) -> None:
    url, _ = teacher
    async with Dispatcher(RewardSettings(custom_rm_path=NAME, rm_url=f"{url}/health")) as graders:
        (outcome,) = await graders.grade([sample()])
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is RewardFailureKind.RAISED
    assert "/generate" in outcome.message


async def test_a_user_s_function_may_set_them_and_reward_the_task(tmp_path: Path) -> None:
    own = "async def reward(args, sample):\n    sample.teacher_log_probs = (-1.0, -2.0, -3.0)\n    return 0.25\n"
    (tmp_path / "own.py").write_text(own)
    async with Dispatcher(RewardSettings(custom_rm_path=f"{tmp_path}/own.py:reward")) as graders:
        (outcome,) = await graders.grade([sample()])
    assert isinstance(outcome, Graded)
    assert outcome.value == 0.25
    assert outcome.teacher_log_probs is not None
    assert unpack(outcome.teacher_log_probs).tolist() == [-1.0, -2.0, -3.0]


def test_an_answer_beside_a_reward_is_no_detail() -> None:
    outcome = graded(answered([5, 6, 7, 8, 9]) | {"score": 1.0}, sample(), "score")
    assert isinstance(outcome, Graded)
    assert (outcome.value, set(outcome.detail)) == (1.0, {"text", "score"})
    assert outcome.teacher_log_probs is not None
    assert outcome.teacher_log_probs.n == 3
    assert isinstance(graded({"meta_info": {}}, sample(), None), RewardFailure)  # no answer: a dict without a key


@pytest.mark.parametrize("wrong", [[-1.0], [-1.0] * 4, [-1.0, math.nan, -1.0], [-1.0, None, -1.0], "abc", [[]] * 3, 7])
def test_log_probs_that_do_not_fit_are_a_failure(wrong: Any) -> None:
    outcome = graded(1.0, sample(teacher_log_probs=wrong), None)
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is RewardFailureKind.WRONG_TYPE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda values: st.lists(values, max_size=4),
)


@given(JSON, st.none() | JSON, st.sampled_from([None, "score"]))
def test_whatever_a_server_answers_is_an_outcome(scored: Any, own: Any, key: str | None) -> None:
    """The process that grades lives on."""
    answer = {"score": 1.0, "meta_info": {"input_token_logprobs": scored}}
    outcome = graded(answer, sample(teacher_log_probs=own), key)
    if isinstance(outcome, Graded) and outcome.teacher_log_probs is not None:
        assert np.isfinite(unpack(outcome.teacher_log_probs)).all()
        assert outcome.teacher_log_probs.n == 3


def test_distillation_alone_rewards_nothing() -> None:
    samples = [sample(), sample(reward=answered([5, 6, 7, 8, 9]))]
    assert post_process_rewards(None, samples) == ([0.0, 0.0], [0.0, 0.0])
    assert samples[0].teacher_log_probs is None
    torch.testing.assert_close(samples[1].teacher_log_probs, torch.tensor([-0.625, -0.75, -0.875]))


@given(st.lists(st.floats(-100, 0, width=32), min_size=1, max_size=40))
def test_they_travel_through_the_log_to_the_bit(values: list[float]) -> None:
    sample_ = Sample(response_length=len(values), teacher_log_probs=values)
    outcome = graded(0.5, sample_, None)
    event = outcome_event("g0-s0", "g0", outcome)
    back = decode(encode(enclose("r", event, at=1, producer="grader"))).event
    assert back == event
    assert isinstance(back, RewardAssigned)
    folded = Trajectories(unpack)
    folded.by_sample["g0-s0"] = Trajectory("g0-s0", pack_tokens([1]), position=7)
    folded.apply(back, 9)
    trajectory = folded.by_sample["g0-s0"]
    assert trajectory.position == 7  # no event of the rollout: a fence on those is not moved
    assert trajectory.teacher_log_probs is not None
    np.testing.assert_array_equal(unpack(trajectory.teacher_log_probs), np.float32(values))
