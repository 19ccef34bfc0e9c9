"""The verdict on a simulated run whose sessions are as they should be, and on the same with one thing changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from schemas.arrays import pack, unpack
from tests.agents.stage import ASKED, TOKENIZER, Stage, seal
from tests.harness.agent_kills.told import Told, answer_in
from tests.harness.agent_kills.verdict import Facts, not_as_made, not_as_told, open_turns, trained_amiss
from tests.scripted_engine import Script

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": ASKED},
    "responses": {"input": ASKED},
    "messages": {"messages": ASKED, "max_tokens": 20},
}

TEXT = partial(TOKENIZER.decode, skip_special_tokens=True)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    async with stage.simulation:
        stage.simulation.start_engine(Script(chunk=4))
        yield stage


async def asked_in_all_ways(client: httpx.AsyncClient, session: dict[str, Any]) -> list[Told]:
    """Ask by three APIs, whole and streamed; each continues the first answer, so that the session is a tree."""
    answers: list[Told] = []
    for path, body in BODIES.items():
        for stream in (False, True):
            name = "input" if path == "responses" else "messages"
            first = {"role": "assistant", "content": answers[0].text} if answers else None
            more = [first, {"role": "user", "content": f"by {path}, {stream}"}] if first else []
            body = body | {"model": "any", "stream": stream, name: [*ASKED, *more]}
            response = await client.post(f"{session['base_url']}/{path}", json=body)
            assert response.status_code == 200
            answer = answer_in(response.text)
            assert answer is not None
            answers.append(answer)
    return answers


async def finished(stage: Stage) -> tuple[list[Told], Facts]:
    """Return the answers and facts of a run that is over."""
    answers: list[Told] = []
    async with stage.gateway() as client:
        for _ in range(stage.plan.steps * stage.plan.samples):
            session = await stage.open(client)
            answers += await asked_in_all_ways(client, session)
            await seal(client, session, reward=1.0)
        await stage.simulation.finish()
    return answers, Facts.of([record.envelope.event for record in stage.simulation.log.records], unpack)


async def test_what_is_as_it_should_be_is_not_found_and_what_is_not_is(stage: Stage) -> None:
    answers, facts = await finished(stage)
    assert len(answers) == len(facts.turns) == 24
    assert len(facts.trained) > len(facts.opened) == 4, "a session that is a tree gave several samples"
    assert [*not_as_told(answers, facts, TEXT), *not_as_made(facts), *trained_amiss(facts)] == []
    assert all(answer.text for answer in answers)

    assert not_as_told([replace(answers[0], text="other")], facts, TEXT)
    assert not_as_told([replace(answers[0], turn=99)], facts, TEXT)

    doctored = copy(facts)
    at, turn = next(iter(facts.turns.items()))
    doctored.turns = facts.turns | {at: msgspec.structs.replace(turn, tokens=other(turn.tokens))}
    assert not_as_made(doctored)
    assert trained_amiss(doctored)

    masked = next(sample for sample in facts.trained if facts.completed[sample].rollout)
    doctored = copy(facts)
    whole = msgspec.structs.replace(facts.completed[masked], loss_mask=None)
    doctored.completed = facts.completed | {masked: whole}
    assert trained_amiss(doctored), "what its sibling trains on, and what the agent said"


async def test_turns_that_are_open_are_counted(stage: Stage) -> None:
    await finished(stage)
    log = stage.simulation.log.records
    assert open_turns(log, log[-1].envelope.at) == 0
    begun = next(record for record in log if record.envelope.event.__struct_config__.tag == "turn.begun")
    assert open_turns(log, begun.envelope.at) == 1


def other(tokens: Any) -> Any:
    """Return as many tokens, all different."""
    return pack(unpack(tokens) + 1, tokens.dtype)
