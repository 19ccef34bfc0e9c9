"""Agents that know a base URL make rollouts that are trained on; the log alone says what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested
from schemas.sessions import Credit, SealReason, SessionOpened, SessionSealed
from schemas.turns import RootReason, TurnRecorded
from slime_events.algorithms.credit import CreditRule
from slime_events.analysis.views.sample import view_sample
from slime_events.app.cli.commands.show_sample import sample_text
from slime_events.core.sessions.session import Limits
from slime_events.core.state.run import RunPhase
from slime_events.model.agent_session import sessions_of
from slime_events.model.records import fold_run
from tests.agents.stage import ASKED, Stage, ask, openai_of, seal, state
from tests.scripted_engine import Script


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    async with stage.simulation:
        stage.simulation.start_engine(Script(chunk=4))
        yield stage


async def two_turns(client: httpx.AsyncClient, session: dict[str, Any], **more: Any) -> list[str]:
    """Ask, and continue from the answer."""
    agent, chat, answers = openai_of(client, session), list(ASKED), list[str]()
    for question in ("and then?", ""):
        answer = await agent.chat.completions.create(model="any", messages=chat, **more)
        answers.append(answer.choices[0].message.content or "")
        chat += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": question}]
    return answers


async def test_an_agent_that_knows_a_base_url_is_trained(stage: Stage) -> None:
    async with stage.gateway() as client:
        for _ in range(stage.plan.steps * stage.plan.samples):
            session = await stage.open(client)
            assert session["status"] == 201
            await two_turns(client, session)
            assert (await seal(client, session, reward=1.0)).status_code == 200
        assert await stage.simulation.finish() is RunPhase.FINISHED
    turns = stage.check_turns()
    assert len(turns) == 8
    assert {(turn_.index, turn_.extends) for turn_ in turns} == {(0, None), (1, 0)}
    for completed in stage.simulation.events(RolloutCompleted, group=turns[0].sample.rpartition("-s")[0]):
        mine = [turn_ for turn_ in turns if turn_.sample == completed.sample]
        assert completed.loss_mask is not None
        trained = unpack(completed.tokens)[unpack(completed.loss_mask) == 1].tolist()
        assert trained == [token for turn_ in mine for token in unpack(turn_.tokens).tolist()]
    stage.check_tokens_once()


async def test_evaluations_are_made_by_agents_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, steps=1, eval_every=1, eval_names=("held",), eval_samples=1, eval_exact=True)
    purposes: list[str] = []
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=4))
        finishing = asyncio.create_task(stage.simulation.finish())
        while not finishing.done():
            session = await stage.open(client, wait_s=0.3)
            if session["status"] == 201:
                purposes.append(session["purpose"])
                await two_turns(client, session)
                await seal(client, session, reward=1.0)
        assert await finishing is RunPhase.FINISHED
    assert sorted(purposes) == ["eval"] * 4 + ["train"] * 2
    assert [event.mean for event in stage.simulation.events(EvalCompleted)] == [1.0, 1.0]


async def test_what_is_shown_of_a_session(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        await two_turns(client, session)
        await seal(client, session, reward=1.0)
    records = fold_run("sim", stage.simulation.log.records)
    sample, sessions = records.samples[session["sample"]], sessions_of(stage.simulation.log.records)
    view = view_sample(records, sample, None, sessions=[s for s in sessions if s.sample == sample.sample])
    assert [(turn.turn, turn.extends, turn.root) for turn in view.turns] == [(0, None, "first"), (1, 0, None)]
    (sealed,) = view.sessions
    assert (sealed.sealed, sealed.leaves, sealed.source) == ("reward", (1,), "team")
    assert f"session {session['session']} of team in chat" in sample_text(view)


async def test_a_stream_ends_once_its_turn_is_in_the_log(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        text = ""
        stream = await openai_of(client, session).chat.completions.create(model="any", messages=ASKED, stream=True)
        async for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
        (turn,) = stage.check_turns()
        whole = await client.post(
            f"{session['base_url']}/chat/completions",
            json={"model": "any", "messages": ASKED, "stream": True},
            headers={"x-stainless-retry-count": "1"},
        )
    assert turn.agent is not None
    assert (turn.agent.root, turn.agent.dialect) == (RootReason.FIRST, "chat")
    assert b"[DONE]" in whole.content
    (call,) = [event for event in stage.simulation.events(RolloutRequested) if event.sample == turn.agent.call]
    assert call.streams


async def post(client: httpx.AsyncClient, session: dict[str, Any], messages: Any, **headers: str) -> httpx.Response:
    body = {"model": "any", "messages": messages}
    return await client.post(f"{session['base_url']}/chat/completions", json=body, headers=headers)


async def test_a_retry_joins_its_turn_and_a_repeated_body_is_another(stage: Stage) -> None:
    async with stage.gateway() as client, stage.gateway() as other:
        session = await stage.open(client)
        mark = {"x-stainless-retry-count": "1"}
        first = asyncio.create_task(post(client, session, ASKED))
        await stage.simulation.until(RolloutRequested, purpose="call")
        here, elsewhere = await asyncio.gather(
            post(client, session, ASKED, **mark), post(other, session, ASKED, **mark)
        )
        answers = [r.json() for r in (await first, here, elsewhere, await post(other, session, ASKED, **mark))]
        assert all(answer_ == answers[0] for answer_ in answers)
        assert len(stage.simulation.events(TurnRecorded)) == 1
        again = (await post(client, session, ASKED)).json()
        assert again["id"] != answers[0]["id"]
        named = [(await post(c, session, ASKED, **{"idempotency-key": "k"})).json() for c in (client, other)]
        assert named[0] == named[1]
        assert len(stage.check_turns()) == 3
        body = await state(client, session)
    assert (body["leaves"], body["orphans"]) == ([2], [0, 1])


async def test_a_gateway_that_was_lost_is_replaced_by_any_other(stage: Stage) -> None:
    stage.simulation.start_engine(Script(chunk=2, seconds_per_chunk=0.02))
    async with stage.gateway() as client:
        session = await stage.open(client)
        async with stage.gateway() as lost:
            asking = asyncio.create_task(post(lost, session, ASKED))
            await stage.simulation.until(RolloutRequested, purpose="call")
        lost_answer = await asyncio.gather(asking, return_exceptions=True)
        assert not isinstance(lost_answer[0], httpx.Response) or lost_answer[0].status_code >= 500
        answer = await post(client, session, ASKED, **{"x-stainless-retry-count": "1"})
        assert answer.status_code == 200
    (turn,) = stage.check_turns()
    assert turn.index == 0


async def test_an_engine_that_is_lost_is_a_pause_of_the_answer(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=2, die_after_tokens=7), name="first", lease_s=0.5)
        session = await stage.open(client)
        asking = asyncio.create_task(post(client, session, ASKED, **{"idempotency-key": "k"}))
        await asyncio.wait([stage.simulation.engines["first"]])
        stage.simulation.start_engine(Script(chunk=4), name="second")
        assert (await asking).status_code == 200
    (turn,) = stage.check_turns()
    chunks = stage.simulation.events(RolloutProgressed)
    assert {chunk.engine for chunk in chunks} | {turn.engine} >= {"first", "second"}


async def test_a_client_that_goes_away_leaves_its_turn(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        asking = asyncio.create_task(post(client, session, ASKED))
        await stage.simulation.until(RolloutRequested, purpose="call")
        asking.cancel()
        await stage.simulation.until(TurnRecorded)
        body = await state(client, session)
    assert [turn["index"] for turn in body["turns"]] == [0]


async def test_a_harness_that_ended_badly_is_never_trained_on(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        await two_turns(client, session)
        answer = await seal(client, session, exit_code=3, reward=1.0)
        assert (answer.status_code, answer.json()["sealed"]) == (200, "exit")
        late = await post(client, session, ASKED)
        assert (late.status_code, "error" in late.json()) == (409, True)
        again = await stage.open(client, group=session["group"])
        while again["sample"] != session["sample"]:
            again = await stage.open(client, group=session["group"])
        assert again["attempt"] == 1
        assert (await post(client, session, ASKED)).status_code == 409, "the first attempt's key is not the second's"
        await two_turns(client, again)
        assert (await seal(client, again, reward=0.5)).status_code == 200
    (failed,) = stage.simulation.events(RolloutFailed)
    assert (failed.kind, failed.attempt) == (FailureKind.AGENT, 0)
    (completed,) = stage.simulation.events(RolloutCompleted, sample=session["sample"])
    assert completed.attempt == 1
    assert [turn_.index for turn_ in stage.check_turns()] == [0, 1, 2, 3]


async def test_paths_become_samples_and_each_token_is_trained_once(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        first = (await post(client, session, ASKED)).json()["choices"][0]["message"]["content"]
        for question in ("one way", "another way"):
            chat = [*ASKED, {"role": "assistant", "content": first}, {"role": "user", "content": question}]
            assert (await post(client, session, chat)).status_code == 200
        other = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "well?"}]
        assert (await post(client, session, other)).status_code == 200
        sealed = await seal(client, session, reward=0.25, rewards={"1": 1.0}, metadata={"task": "a"})
        assert sealed.json()["leaves"] == [3, 1, 2]
    turns = {turn_.index: turn_ for turn_ in stage.check_turns()}
    assert {index: (turn_.extends, turn_.agent and turn_.agent.root) for index, turn_ in turns.items()} == {
        0: (None, RootReason.FIRST),
        1: (0, None),
        2: (0, None),
        3: (None, RootReason.SUBAGENT),
    }
    samples = stage.simulation.events(RolloutCompleted, group=session["group"])
    names = [session["sample"] + end for end in ("-1", "-2", "")]
    assert [sample.sample for sample in samples] == names
    trained = [unpack(sample.tokens)[_mask(sample) == 1].tolist() for sample in samples]
    assert trained[0] == [*unpack(turns[0].tokens).tolist(), *unpack(turns[1].tokens).tolist()]
    assert trained[1] == unpack(turns[2].tokens).tolist()
    assert trained[2] == unpack(turns[3].tokens).tolist()
    rewards = {event.sample: event.value for event in stage.simulation.events(RewardAssigned, group=session["group"])}
    assert [rewards[name] for name in names] == [1.0, 0.25, 0.25]
    assert samples[0].metadata["task"] == "a"


@pytest.mark.parametrize(
    ("credit", "trained"),
    [
        (Credit.ALL, [[0, 2], [1]]),
        (Credit.LAST, [[1], [2]]),
        (Credit.LEAF, [[0, 2]]),
        (Credit.DISCOUNTED, [[0, 2], [1]]),
    ],
)
async def test_which_turns_are_trained_on(stage: Stage, credit: Credit, trained: list[list[int]]) -> None:
    async with stage.gateway(credit=CreditRule(credit, 0.5)) as client:
        session = await stage.open(client)
        reply = await ask(client, session, ASKED)
        for question in ("one way", "another way"):
            await ask(client, session, [*ASKED, reply, {"role": "user", "content": question}])
        await seal(client, session, reward=1.0)
    tokens = {turn_.index: unpack(turn_.tokens).tolist() for turn_ in stage.check_turns()}
    samples = stage.simulation.events(RolloutCompleted, group=session["group"])
    counts = {
        sample.sample: None if sample.credit is None else unpack(sample.credit)[_mask(sample) == 1]
        for sample in samples
    }
    if credit is Credit.DISCOUNTED:  # the turn before the last of its path counts half
        expected = {session["sample"]: [0.5] * len(tokens[0]) + [1.0] * len(tokens[2])}
        expected[session["sample"] + "-1"] = [1.0] * len(tokens[1])
        assert {name: weights.tolist() for name, weights in counts.items()} == expected
    else:
        assert set(counts.values()) == {None}
    trained_tokens = sorted(unpack(sample.tokens)[_mask(sample) == 1].tolist() for sample in samples)
    assert trained_tokens == sorted([token for index in turns for token in tokens[index]] for turns in trained)


def _mask(completed: RolloutCompleted) -> Any:
    return np.ones(completed.length, np.int8) if completed.loss_mask is None else unpack(completed.loss_mask)


async def test_what_is_idle_is_sealed_and_graded_with_what_it_has(stage: Stage) -> None:
    limits = Limits(turn_s=5.0, session_s=60.0, idle_s=1.0)
    async with stage.gateway(limits=limits) as client, stage.gateway(limits=limits):
        used, unused = await stage.open(client), await stage.open(client)
        await two_turns(client, used)
        sealed = await stage.simulation.until(SessionSealed, 2)
        assert {event.reason for event in sealed} == {SealReason.IDLE}
        assert (await post(client, used, ASKED)).status_code == 409
        await stage.simulation.until(RewardAssigned, sample=used["sample"])
    (failed,) = stage.simulation.events(RolloutFailed)
    assert failed.sample == unused["sample"]


async def test_what_is_idle_fails_where_the_run_says_so(stage: Stage) -> None:
    """And its rollout is asked for again."""
    limits = Limits(turn_s=5.0, session_s=60.0, idle_s=1.0)
    async with stage.gateway(limits=limits, fails_idle=True) as client:
        used = await stage.open(client)
        await two_turns(client, used)
        (sealed,) = await stage.simulation.until(SessionSealed, sample=used["sample"])
        body = await state(client, used)
        again = await stage.open(client, group=used["group"])
        while again["sample"] != used["sample"]:
            again = await stage.open(client, group=used["group"])
    assert (sealed.reason, sealed.turns, again["attempt"]) == (SealReason.IDLE, 2, 1)
    assert "--agent-idle fail" in body["failed"]
    (failed,) = stage.simulation.events(RolloutFailed, sample=used["sample"])
    assert failed.kind is FailureKind.AGENT
    assert stage.simulation.events(RolloutCompleted, sample=used["sample"]) == []


async def test_a_session_without_turns_is_told_so_when_it_is_sealed(stage: Stage) -> None:
    async with stage.gateway() as client:
        empty, used = await stage.open(client), await stage.open(client)
        await two_turns(client, used)
        nothing, something = await seal(client, empty, reward=1.0), await seal(client, used, reward=1.0)
    assert nothing.status_code == something.status_code == 200
    assert nothing.json()["session"] == empty["session"]
    assert "has no completed turn" in nothing.json()["failed"]
    assert "failed" not in something.json()
    (failed,) = stage.simulation.events(RolloutFailed)
    assert failed.message == nothing.json()["failed"]
    assert nothing.json()["result"] == "failed"


async def test_a_key_opens_one_session(stage: Stage) -> None:
    async with stage.gateway() as client, stage.gateway() as other:
        headers = {"authorization": f"Bearer {stage.token}", "idempotency-key": "mine"}
        first, again = [
            (await client_.post("/v1/runs/sim/sessions", json={"wait_s": 20}, headers=headers)).json()
            for client_ in (client, other)
        ]
        assert first == again
        second = await stage.open(other)
        assert second["sample"] != first["sample"]
        nothing = await stage.open(client, wait_s=0)
        assert nothing["status"] == 429
    assert len(stage.simulation.events(SessionOpened)) == 2


async def test_a_turn_that_takes_too_long_is_ended(stage: Stage) -> None:
    slow = Script(chunk=1, seconds_per_chunk=0.1)
    limits = Limits(turn_s=0.3, session_s=60.0, idle_s=30.0)
    stage.simulation.engines.popitem()[1].cancel()
    stage.simulation.start_engine(slow)
    async with stage.gateway(limits=limits) as client:
        session = await stage.open(client)
        late = await post(client, session, ASKED)
        assert late.status_code == 504
        await stage.simulation.until(RolloutFailed)
        body = await state(client, session)
        assert (body["turns"], [turn_["index"] for turn_ in body["open"]]) == ([], [0])


async def test_what_is_too_much_for_the_engines_is_put_off(stage: Stage) -> None:
    async with stage.gateway(tokens_in_flight=60) as client:
        session = await stage.open(client)
        answers = await asyncio.gather(*(post(client, session, ASKED) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429]
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        assert (await post(client, session, ASKED)).status_code == 200
        count = {"model": "any", "messages": ASKED}
        counted = await client.post(f"{session['base_url']}/messages/count_tokens", json=count)
        (call, *_) = [event for event in stage.simulation.events(RolloutRequested) if event.purpose is Purpose.CALL]
        assert counted.json() == {"input_tokens": call.prompt.n}
        long = await post(client, session, [{"role": "user", "content": "x" * 5000}])
        assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
        assert (await client.get(f"{session['base_url']}/models")).json()["data"][0]["object"] == "model"


async def test_a_run_that_is_off_says_so(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        stage.is_on = False
        refused = [await post(client, session, ASKED), await seal(client, session, reward=1.0)]
        assert [answer.status_code for answer in refused] == [503, 503]
        assert all(answer.headers["retry-after"] for answer in refused)


async def test_agents_and_harnesses_have_keys_of_their_own(stage: Stage) -> None:
    async with stage.gateway() as client:
        session = await stage.open(client)
        body = {"model": "any", "messages": ASKED}
        for headers in ({"authorization": f"Bearer {session['agent_key']}"}, {"x-api-key": session["agent_key"]}):
            assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        wrong = [
            await client.post("/v1/chat/completions", json=body),
            await client.post("/v1/chat/completions", json=body, headers={"x-api-key": session["control_key"]}),
            await client.post(f"{session['base_url'][:-5]}x/v1/chat/completions", json=body),
            await seal(client, session | {"control_key": session["agent_key"]}, reward=1.0),
            await client.get(f"/v1/sessions/{session['session']}"),
        ]
        assert [answer.status_code for answer in wrong] == [401] * 5
        assert (await seal(client, session)).status_code == 422
        assert (await seal(client, session, rewards={"7": 1.0})).status_code == 422


async def test_an_agent_that_asks_without_end_is_asked_to_come_again(stage: Stage) -> None:
    async with stage.gateway(turns_per_minute=2) as client:
        first, second = await stage.open(client), await stage.open(client)
        answers = [await post(client, first, ASKED) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
        assert (await post(client, second, ASKED)).status_code == 200, "each session has its own"
