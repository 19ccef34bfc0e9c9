"""`CustomGenerate` by itself: what it reads of a rollout, and the rewards that a function gave."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.arrays import unpack
from schemas.errors import Conflict, EngineError, PlugPointError
from schemas.event import Event, Purpose
from schemas.rewards import RewardAssigned
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
)
from schemas.turns import TurnBegun, TurnRole
from serve_apps.rollouts.generate.custom import CustomGenerate
from serve_apps.rollouts.generate.function import UserLoop
from serve_apps.rollouts.generate.session import CURRENT
from serve_apps.rollouts.generate.slime.requests import get, get_model_url, post
from serve_apps.rollouts.rollout import Rollout
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.sample import Sample
from storage.memory_log import MemoryLog
from tests import made
from tests.generate.scene import a_run, events, run_until, setup
from tests.generate.test_journal import session_of
from tests.scripted_engine import Script
from tests.simulation.parts import Letters

REQUEST = made.requested(prompt=[65], seed=7)


def custom(log: MemoryLog, **args: Any) -> CustomGenerate:
    return CustomGenerate(setup("graded", **args), Letters(), log, unpack, 1)


def rewards(samples: list[Sample], purpose: Purpose = Purpose.TRAIN, **args: Any) -> dict[str, float]:
    """Return the rewards of the samples of one rollout, by their names."""
    making = custom(MemoryLog("r"), **args)
    names = [f"g-s0-{number}" if number else "g-s0" for number in range(len(samples))]
    events = [made.completed(name) for name in (*names[1:], names[0])]
    request = made.requested(prompt=REQUEST.prompt, sampling=REQUEST.sampling, seed=7, purpose=purpose)
    try:
        function, returned = making._function(setup("graded").path), samples if len(samples) > 1 else samples[0]
        events_: list[Event] = making._rewards(function, returned, events, request)
    finally:
        making.close()
    return {event.sample: event.value for event in events_ if isinstance(event, RewardAssigned)}


def graded(**reward: float) -> Sample:
    return Sample(reward=reward)


def test_each_sample_has_its_own_reward_and_0_is_one() -> None:
    results = [graded(score=0.0), graded(score=1.0), Sample(), graded(score=0.5)]
    assert rewards(results) == {"g-s0": 0.0, "g-s0-1": 1.0, "g-s0-3": 0.5}
    assert rewards([Sample(reward=0.0)], reward_key=None) == {"g-s0": 0.0}


@pytest.mark.parametrize(
    ("purpose", "key", "value"), [(Purpose.TRAIN, "acc", 1.0), (Purpose.EVAL, "acc", 0.25), (Purpose.EVAL, None, 1.0)]
)
def test_an_evaluation_has_a_key_of_its_own(purpose: Purpose, key: str | None, value: float) -> None:
    assert rewards([graded(score=1.0, acc=0.25)], purpose, eval_reward_key=key) == {"g-s0": value}


def test_a_grader_of_groups_goes_over_a_function_s_head() -> None:
    assert rewards([graded(score=1.0)], group_rm=True) == {}


async def test_it_reads_up_to_the_last_that_was_said_and_stops_where_it_has_ended() -> None:
    log = MemoryLog("r")
    worker = Participant(log, "conductor")
    making = custom(log)
    rollout = Rollout(REQUEST, Trajectory(REQUEST.sample, REQUEST.prompt), "e")
    try:
        await worker.append([REQUEST])
        await worker.append([TurnBegun(sample="g-s0", index=0, role=TurnRole.ASSISTANT, asked="a", engine="lost")])
        record = await making._read(rollout)
        assert (rollout.trajectory.position, record.next_index) == (2, 1)
        await worker.append([made.completed()])
        with pytest.raises(Conflict):
            await making._read(rollout)
    finally:
        making.close()


async def test_what_is_closed_leaves_no_thread_and_no_file() -> None:
    process = psutil.Process()
    gc.collect()  # what tests before this one have left
    before, files = set(threading.enumerate()), process.num_fds()
    making = custom(MemoryLog("r"))
    for loop in (making._loop, making._http):
        await loop.run(asyncio.sleep(0))
    begun = set(threading.enumerate()) - before
    assert len(begun) == 2
    assert all(thread.daemon for thread in begun), "no process waits for a function that hangs"
    making.close()
    for thread in begun:
        await asyncio.to_thread(thread.join, 10.0)
    assert [thread for thread in begun if thread.is_alive()] == []
    assert process.num_fds() <= files
    late = asyncio.sleep(0)
    with pytest.raises(EngineError):
        making._loop.begin(late)
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED


async def test_as_many_tools_run_at_once_as_there_are_rollouts() -> None:
    rollouts = 40
    loop, together = UserLoop(rollouts), threading.Barrier(rollouts, timeout=10.0)

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(rollouts)))

    assert sorted(await loop.run(all_of_them())) == list(range(rollouts))
    loop.stop()


async def test_a_failure_that_a_function_hides_fails_its_rollout(tmp_path: Path) -> None:
    file = tmp_path / "hides.py"
    file.write_text(
        "async def generate(args, sample, sampling_params, *, session):\n"
        "    sample.tokens = session.tokenize(sample.prompt)\n"
        "    try:\n"
        "        (await session.generate(sample.tokens)).add_to(sample)\n"
        "    except Exception:\n"
        "        sample.append_response_tokens(tokens=[1], text='x', trainable=False)\n"
        "    return sample\n"
    )
    refused = Script(refused={"train-0-000000-s0-0-1": "no room"})
    run = a_run(tmp_path / "run", setup(f"{file}:generate"), scripts=(refused,))
    await run_until(run, RolloutFailed)
    (failed,) = events(run, RolloutFailed, attempt=0)
    assert failed.kind is FailureKind.ENGINE
    assert not events(run, RolloutCompleted, attempt=0)


async def test_what_the_engine_answers_without_a_network() -> None:
    token = CURRENT.set(await session_of(MemoryLog("r")))
    try:
        args = ArgsView({"sglang_router_ip": "127.0.0.1", "sglang_router_port": 0})
        answer = await post(get_model_url(args, "m"), {"text": "A", "sampling_params": {"max_new_tokens": 2}})
        assert len(answer["output_ids"]) == 2
        assert (await get(get_model_url(args, "m", "/get_model_info")))["is_generation"] is True
        with pytest.raises(PlugPointError, match="does not answer POST /flush_cache"):
            await post(get_model_url(args, "m", "/flush_cache"), {"text": "A"})
        with pytest.raises(PlugPointError, match="3 prompts and 2 sampling"):
            await post(get_model_url(args, "m"), {"text": ["A", "B", "C"], "sampling_params": [{}, {}]})
    finally:
        CURRENT.reset(token)
