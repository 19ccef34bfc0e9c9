"""Test the outcome of a call, from the log alone: commands, samples that an engine lost, and where weights
were saved.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack_tokens, unpack
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import RunNotFound
from schemas.rollouts import FailureKind, RolloutRequested
from schemas.runs import FinishReason
from serve_apps.http.tinker.answers import PROMPT_LOG_PROBS, Answers, Failed, FinishedSamples, SampledSequences
from serve_apps.http.tinker.names import Samples
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.core.training.datums import Datum
from tests import made
from tests.made import progressed
from tests.tinker.lone import MODEL, Lone, completed, failed, requested

ASKED = Samples("call-2-0123456789abcdef", 2)
ONE = Samples("call-2-0123456789abcdef", 1)
FIRST, SECOND = ASKED.ids
COMMAND = f"{MODEL}-000001"
GIVEN = CommandGiven(command=COMMAND, model=MODEL, number=1, kind=CommandKind.OPTIM_STEP)
DONE = CommandDone(command=COMMAND, version=3)
BEFORE, OVER = (made.finished(FinishReason.INTERRUPTED, events=events) for events in (1, 2))


@pytest.fixture
def lone(tmp_path: Path) -> Lone:
    return Lone(tmp_path)


async def test_a_command_is_there_and_then_done(lone: Lone) -> None:
    with pytest.raises(RunNotFound):
        await lone.answers.command(COMMAND, 0.0)
    assert await lone.answers.find(COMMAND) is None
    await lone.say(GIVEN)
    assert await lone.answers.find(COMMAND) == GIVEN
    assert await lone.answers.command(COMMAND, 0.0) is None
    await lone.say(DONE)
    assert await lone.answers.command(COMMAND, 0.0) == (GIVEN, DONE)
    assert not lone.answers._waiting, "nobody waits any more"


async def followed(answers: Answers) -> asyncio.Task[None]:
    task = asyncio.create_task(answers.follow())
    for _ in range(5):  # until it follows
        await asyncio.sleep(0)
    return task


async def test_who_waits_is_woken_by_the_end_of_the_call_alone(lone: Lone) -> None:
    await lone.say(GIVEN, BEFORE)
    following = await followed(lone.answers)  # an earlier end of the run is none of this one's
    waiting = asyncio.create_task(lone.answers.command(COMMAND, 60.0))
    await asyncio.sleep(0)
    async with asyncio.timeout(10.0):
        await lone.say(DONE)
        assert await waiting == (GIVEN, DONE)
        assert not following.done()
        await lone.say(OVER)
        await following
    assert lone.answers.is_over


async def test_two_who_wait_for_one_are_both_told(lone: Lone) -> None:
    await lone.say(GIVEN)
    following = await followed(lone.answers)
    waiting = [asyncio.create_task(lone.answers.command(COMMAND, seconds)) for seconds in (60.0, 0.0, 60.0)]
    await asyncio.wait([waiting[1]])
    async with asyncio.timeout(10.0):
        await lone.say(DONE, OVER)
        assert await asyncio.gather(*waiting) == [(GIVEN, DONE), None, (GIVEN, DONE)]
        await following


async def test_all_samples_are_waited_for(lone: Lone) -> None:
    with pytest.raises(RunNotFound):
        await lone.answers.samples(ASKED, 0.0)
    await lone.say(requested(FIRST), requested(SECOND), completed(SECOND, [7, 8, 9]))
    assert await lone.answers.samples(ASKED, 0.0) is None
    following = await followed(lone.answers)
    waiting = asyncio.create_task(lone.answers.samples(ASKED, 60.0))
    await asyncio.sleep(0)
    async with asyncio.timeout(10.0):
        await lone.say(completed(FIRST), OVER)
        finished = await waiting
        await following
    assert isinstance(finished, FinishedSamples)
    assert [sample.sample for sample in finished.samples] == ASKED.ids
    assert [sample.tokens.tolist() for sample in finished.samples] == [[5, 6], [7, 8, 9]]
    assert finished.prompt_log_probs is None


async def test_chunks_of_a_sample_are_joined(lone: Lone) -> None:
    begin, end = completed(FIRST, [5, 6]), completed(FIRST, [7])
    chunk = progressed(FIRST, begin.tokens, log_probs=begin.log_probs, spans=())
    await lone.say(requested(FIRST), chunk)
    assert await lone.answers.samples(ONE, 0.0) is None
    await lone.say(msgspec.structs.replace(end, start=2, length=3))
    finished = await lone.answers.samples(ONE, 0.0)
    assert isinstance(finished, FinishedSamples)
    assert finished.samples[0].tokens.tolist() == [5, 6, 7]


async def test_what_an_engine_lost_is_asked_for_again_so_often(lone: Lone) -> None:
    await lone.say(requested(FIRST), failed(FIRST, FailureKind.ENGINE))
    for _ in range(2):
        assert await lone.answers.samples(ONE, 0.0) is None
    again = (await lone.events(RolloutRequested))[1:]
    assert again == [requested(FIRST, attempt=1)]
    await lone.say(failed(FIRST, FailureKind.ENGINE, attempt=1))
    lost = await lone.answers.samples(ONE, 0.0)
    assert isinstance(lost, Failed)
    assert not lost.is_users
    assert len(await lone.events(RolloutRequested)) == 2


async def test_one_attempt_is_the_only_one(tmp_path: Path) -> None:
    lone = Lone(tmp_path, attempts=1)
    await lone.say(requested(FIRST), failed(FIRST, FailureKind.ENGINE))
    assert isinstance(await lone.answers.samples(ONE, 0.0), Failed)


async def test_what_an_engine_refuses_is_the_client_s(lone: Lone) -> None:
    await lone.say(requested(FIRST), requested(SECOND), completed(FIRST), failed(SECOND, FailureKind.INVALID))
    refused = await lone.answers.samples(ASKED, 0.0)
    assert isinstance(refused, Failed)
    assert refused.is_users
    assert not Failed("").is_users
    assert len(await lone.events(RolloutRequested)) == 2


SCORED = {PROMPT_LOG_PROBS: [[None, 65, None], [-0.25, 66, None], [-0.5, 67, None], [-0.75, 5, None]]}


@pytest.mark.parametrize(
    ("meta", "payload", "expected"),
    [
        (SCORED, {"logprob_start_len": 0}, [None, -0.25, -0.5]),
        ({PROMPT_LOG_PROBS: [[None, 65, None]]}, {"logprob_start_len": 0}, [None, None, None]),
        (SCORED, {}, None),
        ({}, {"logprob_start_len": 0}, None),
    ],
)
async def test_a_prompt_is_scored_where_that_was_asked_for(lone: Lone, meta: Any, payload: Any, expected: Any) -> None:
    await lone.say(requested(FIRST, payload=payload), completed(FIRST, meta=meta))
    finished = await lone.answers.samples(ONE, 0.0)
    assert isinstance(finished, FinishedSamples)
    scores = finished.prompt_log_probs
    if expected is None:
        assert scores is None
    else:
        assert scores is not None
        assert [None if np.isnan(score) else float(score) for score in scores] == expected
        assert scores.dtype == np.float32


async def test_a_version_is_found_where_it_was_last_saved(lone: Lone) -> None:
    assert await lone.answers.saved("tinker://a") is None
    for number, (path, version) in enumerate(
        [("tinker://a", 3), ("tinker://b", 4), ("tinker://a", 5), ("tinker://ab", 6), ("", 7)]
    ):
        await lone.say(CommandDone(command=f"c{number}", version=version, path=path))
    assert await lone.answers.saved("tinker://a") == 5
    assert await lone.answers.saved("tinker://b") == 4
    assert await lone.answers.saved("tinker://c") is None


async def test_a_checkpoint_is_of_its_version(lone: Lone) -> None:
    await lone.say(made.saved(3, weights_digest="w", optimizer_digest="o"))
    assert await lone.answers.has_checkpoint(3)
    assert not await lone.answers.has_checkpoint(4)


def sequence(sample: str, *tokens: int) -> Trajectory:
    trajectory = Trajectory(sample, pack_tokens([1]))
    trajectory._tokens.add(np.array(tokens, np.int32))
    return trajectory


def trained(*tokens: int) -> Datum:
    whole = np.array([1, *tokens], np.int32)
    return Datum(whole[:-1], whole[1:], {})


def test_a_sequence_is_known_while_there_is_room() -> None:
    sequences = SampledSequences(most=2)
    for name, token in (("a", 5), ("b", 6), ("c", 7)):
        sequences.add(sequence(name, token, token), unpack)
    assert sequences.of([trained(7, 7), trained(5, 5), trained(6, 6), trained(6), trained(8, 8)]) == ["c", "b"]


async def test_sequences_that_were_given_out_are_known(lone: Lone) -> None:
    await lone.say(requested(FIRST), completed(FIRST, [5, 6]))
    await lone.answers.samples(ONE, 0.0)
    whole = np.array([65, 66, 67, 5, 6], np.int32)
    assert lone.answers.sequences.of([Datum(whole[:-1], whole[1:], {})]) == [FIRST]
