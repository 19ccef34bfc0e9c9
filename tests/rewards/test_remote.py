"""`--rm-type remote_rm` against a judge on loopback that does what judges do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import remote
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import Graded, Outcome, RewardFailure
from slime_events.plugins.sample import Sample
from tests.clock import Clock

LIMIT_S = 60.0
Answer = Callable[[dict[str, Any]], Any]


class Judge:
    """asked: every question. most: questions under way at once. hold: answers wait for `let_go`."""

    def __init__(self) -> None:
        self.url = ""
        self.questions: list[dict[str, Any]] = []
        self.answer: Answer = lambda question: 0.5
        self.slow: set[str] = set()
        self.let_go = asyncio.Event()
        self.under_way = self.most = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        question = await request.json()
        self.questions.append(question)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if question["response"] in self.slow:
                await self.let_go.wait()
            answer = self.answer(question)
        finally:
            self.under_way -= 1
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)


@pytest.fixture
async def judge(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Judge]:
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0001)
    judge, app = Judge(), web.Application()
    app.router.add_post("/judge", judge.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/judge"
    yield judge
    judge.let_go.set()
    await runner.cleanup()


def graders(url: str, **settings: Any) -> Dispatcher:
    fields: dict[str, Any] = {"rm_type": "remote_rm", "rm_url": url, "rm_timeout": LIMIT_S, **settings}
    return Dispatcher(RewardSettings(**fields))


def sample(response: str = "4", **fields: Any) -> Sample:
    return Sample(prompt="2+2", response=response, label="4", **fields)


async def outcome_of(judge: Judge, answer: Any, **settings: Any) -> Outcome:
    judge.answer = answer if callable(answer) else lambda _: answer
    async with graders(judge.url, **settings) as graders_:
        (outcome,) = await graders_.grade([sample()])
    return outcome


async def test_a_number_is_the_reward_and_the_question_has_slime_s_form(judge: Judge) -> None:
    outcome = await outcome_of(judge, 0.25)
    assert isinstance(outcome, Graded)
    assert (outcome.value, outcome.grader) == (0.25, "remote_rm")
    assert outcome.grader_digest
    assert judge.questions == [{"prompt": "2+2", "response": "4", "label": "4"}]


async def test_a_dict_needs_the_reward_s_key(judge: Judge) -> None:
    graded = await outcome_of(judge, {"score": 1, "why": "right"}, reward_key="score")
    assert isinstance(graded, Graded)
    assert (graded.value, graded.detail) == (1.0, {"score": 1, "why": "right"})
    without = await outcome_of(judge, {"score": 1})
    assert isinstance(without, RewardFailure)
    assert without.kind is RewardFailureKind.NO_KEY


async def test_only_the_box_is_sent_where_the_name_says_so(judge: Judge) -> None:
    async with graders(judge.url, rm_type="boxed_remote_rm") as graders_:
        await graders_.grade([sample("so it is \\boxed{4}."), dataclasses.replace(sample("4"), label={"answer": 4})])
    assert sorted(question["response"] for question in judge.questions) == ["", "4"]
    assert [question["label"] for question in judge.questions if not question["response"]] == [{"answer": 4}]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_judge_that_is_busy_is_asked_again(judge: Judge, status: int) -> None:
    outcome = await outcome_of(judge, lambda _: 1.0 if len(judge.questions) > 2 else web.Response(status=status))
    assert isinstance(outcome, Graded)
    assert len(judge.questions) == 3


async def test_a_judge_that_stays_busy_is_given_up(judge: Judge) -> None:
    outcome = await outcome_of(judge, lambda _: web.Response(status=503, text="full"))
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is RewardFailureKind.RAISED
    assert f"{judge.url} gave no reward in {remote.TRIES} tries" in outcome.message
    assert "503" in outcome.message
    assert "full" in outcome.message
    assert len(judge.questions) == remote.TRIES


async def test_a_refusal_is_not_asked_again(judge: Judge) -> None:
    outcome = await outcome_of(judge, lambda _: web.Response(status=422, text="no label"))
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is RewardFailureKind.RAISED
    assert "answered 422" in outcome.message
    assert "no label" in outcome.message
    assert len(judge.questions) == 1


async def test_what_is_no_reward_is_named(judge: Judge) -> None:
    text = await outcome_of(judge, lambda _: web.Response(text="fine"))
    assert isinstance(text, RewardFailure)
    assert "invalid JSON" in text.message
    null = await outcome_of(judge, lambda _: web.json_response(None))
    assert isinstance(null, RewardFailure)
    assert null.kind is RewardFailureKind.NONE


async def test_a_judge_that_does_not_answer_has_a_time_limit(judge: Judge) -> None:
    judge.slow = {"4"}
    outcome = await outcome_of(judge, 1.0, rm_timeout=0.2)
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is RewardFailureKind.TIMEOUT
    assert outcome.message == f"no reward from {judge.url} within 0.2 s (1 try; the last: it has not answered)"


async def test_nobody_there(judge: Judge) -> None:
    async with graders("http://127.0.0.1:9/judge", rm_timeout=0.2) as graders_:
        (outcome,) = await graders_.grade([sample()])
    assert isinstance(outcome, RewardFailure)
    assert "127.0.0.1:9" in outcome.message


async def test_a_slow_answer_delays_nobody_else(judge: Judge) -> None:
    judge.slow = {"slow"}
    async with graders(judge.url) as graders_:
        slow = asyncio.create_task(graders_.grade([sample("slow")]))
        others = await graders_.grade([sample(str(number)) for number in range(100)])
        assert all(isinstance(outcome, Graded) for outcome in others)
        assert not slow.done()
        judge.let_go.set()
        assert isinstance((await slow)[0], Graded)


async def test_questions_under_way_are_bounded_and_waiting_costs_no_time(
    judge: Judge, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECTIONS", 3)
    judge.slow = set("012345")
    async with graders(judge.url) as graders_:
        grading = asyncio.create_task(graders_.grade([sample(number) for number in "012345"]))
        for questions in (3, 6):
            while not (len(judge.questions) == questions and judge.under_way == 3):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            clock.forward(0.8 * LIMIT_S)
            judge.let_go.set()
            judge.let_go.clear()
        assert all(isinstance(outcome, Graded) for outcome in await grading)
    assert judge.most == 3


async def test_samples_may_name_another_grader(judge: Judge) -> None:
    async with graders(judge.url) as graders_:
        exact, remotely = await graders_.grade([sample(metadata={"rm_type": "exact"}), sample()])
    assert isinstance(exact, Graded)
    assert isinstance(remotely, Graded)
    assert (exact.grader, remotely.grader) == ("exact", "remote_rm")
    assert len(judge.questions) == 1


async def test_a_sample_that_names_a_judge_that_the_run_does_not_have() -> None:
    async with Dispatcher(RewardSettings(rm_type="exact")) as graders_:
        (outcome,) = await graders_.grade([sample(metadata={"rm_type": "remote_rm"})])
    assert isinstance(outcome, RewardFailure)
    assert "--rm-url" in outcome.message
