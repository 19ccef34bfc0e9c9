"""Generate functions for the tests: with slime's signature, with ours, and such that do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from typing import Any

from schemas.errors import ToolFailed
from serve_apps.rollouts.generate.session import Session, current_session
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample

CALLS: Counter[str] = Counter()
"""How often a tool was really called, by what it was asked."""


MANY = 33
"""More than the threads that asyncio gives a loop on any machine."""
_meeting = threading.Barrier(MANY)


def meet() -> bool:
    """Play a tool that ends once all rollouts of the barrier have called it."""
    _meeting.wait(timeout=20.0)
    return True


def look_up(rollout: str, turn: int, word: int) -> str:
    """A tool with an effect: it counts."""
    CALLS[f"{rollout} {turn}"] += 1
    return f"<{word} is odd>" if word % 2 else f"<{word} is even>"


async def _converse(sample: Sample, session: Session, turns: int, *, may_repeat: bool) -> Sample:
    sample.tokens = session.tokenize(sample.prompt)
    for left in reversed(range(turns)):
        turn = await session.generate(sample.tokens, {"max_new_tokens": 10})
        turn.add_to(sample)
        if left:
            question = {"rollout": sample.session_id, "turn": turn.index, "word": turn.tokens[0]}
            result_text = await session.call(look_up, question, may_repeat=may_repeat)
            sample.append_response_tokens(tokens=session.tokenize(result_text), text=result_text, trainable=False)
    return sample


async def two_turns(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> Sample:
    return await _converse(sample, session, 2, may_repeat=True)


async def two_careful_turns(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> Sample:
    return await _converse(sample, session, 2, may_repeat=False)


async def longer_when_evaluated(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False, *, session: Session
) -> Sample:
    return await _converse(sample, session, 6 if evaluation else 1, may_repeat=False)


async def meets(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> Sample:
    await session.call(meet, {})
    return await _converse(sample, session, 1, may_repeat=False)


async def fan_out(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool, session: Session
) -> Sample | list[Sample]:
    """A solver twice side by side and a judge of both: samples with prompts of their own. An evaluation has one."""
    prompt = session.tokenize(sample.prompt)
    solved = await asyncio.gather(*(session.generate(prompt, {"max_new_tokens": 6}) for _ in range(2)))
    question = session.tokenize(f"which? {solved[0].text} | {solved[1].text}")
    judged = await session.generate(question, {"max_new_tokens": 4})
    samples = []
    for tokens, turn in ((prompt, solved[0]), (prompt, solved[1]), (question, judged)):
        copy_ = Sample(
            prompt=sample.prompt, label=sample.label, metadata={"role": "judge" if turn is judged else "solver"}
        )
        copy_.tokens = list(tokens)
        turn.add_to(copy_)
        samples.append(copy_)
    return samples[0] if evaluation else samples


async def fan_in(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> list[Sample]:
    """Return the samples backwards: the requested one has a prompt of its own, a further one that of the request."""
    samples = await fan_out(args, sample, sampling_params, evaluation=False, session=session)
    assert isinstance(samples, list)
    return samples[::-1]


async def graded(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Knows its reward itself."""
    session = current_session()
    sample.tokens = session.tokenize(sample.prompt)
    turn = await session.generate(sample.tokens)
    turn.add_to(sample)
    sample.reward = {"score": turn.tokens[0] / 256, "why": "first token"}
    return sample


async def raises(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    return 1 / 0  # type: ignore[return-value]


async def exits(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    sys.exit(3)


async def calls_a_tool_that_exits(
    args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session
) -> Sample:
    """Continue without the tool."""
    with contextlib.suppress(ToolFailed):
        await session.call(sys.exit, {})
    return await _converse(sample, session, 1, may_repeat=False)


async def begins_a_task_that_exits(
    args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session
) -> Sample:
    begun = asyncio.create_task(exits(args, sample, sampling_params))
    await asyncio.wait({begun})
    begun.exception()  # one that nobody retrieves is written by the garbage collector, in the middle of another test
    return await _converse(sample, session, 1, may_repeat=False)


async def cancels_what_it_waits_for(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    waiting = asyncio.ensure_future(asyncio.sleep(1000, sample))
    waiting.cancel()
    return await waiting


async def sleeps(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    await asyncio.sleep(1000)
    return sample


async def blocks(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> Sample:
    """Holds its own loop for as long as two leases last."""
    time.sleep(0.4)  # noqa: ASYNC251
    return await _converse(sample, session, 1, may_repeat=False)


async def returns_nothing(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> None:
    return None


async def no_response(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    return sample


async def hides_a_failed_tool(
    args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session
) -> Sample:
    """Continue without the tool."""
    sample.tokens = session.tokenize(sample.prompt)
    try:
        await session.call(load_function, {"path": "nowhere:nothing"})
    except Exception as error:
        sample.metadata["tool"] = str(error)
    turn = await session.generate(sample.tokens)
    turn.add_to(sample)
    return sample


async def uneven(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> list[Sample]:
    """Two samples of each rollout, after many turns for every second prompt."""
    long = await _converse(sample, session, 6 if int(str(sample.prompt).split()[-1]) % 2 else 1, may_repeat=False)
    short = Sample(prompt=sample.prompt, label=sample.label)
    short.tokens = session.tokenize(f"in short: {sample.prompt}")
    (await session.generate(short.tokens, {"max_new_tokens": 4})).add_to(short)
    return [long, short]
