"""A step that is made of a client's commands leads to them, and to the generations that their datums are of."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.commands import CommandGiven, CommandKind
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.core.training.datums import Datum, pack_datums
from tests.lineage.long import long_run, rollout_events
from tests.lineage.opened import opened

IDS = np.array([1, 2], np.int32)
DATUMS = pack_datums([Datum(IDS, IDS, {"weights": np.ones(2, np.float32)})] * 3)


def command_given(number: int, kind: CommandKind, **fields: Any) -> CommandGiven:
    return CommandGiven(command=f"m-{number}", model="m", number=number, kind=kind, source="team", **fields)


async def driven() -> Lineage:
    """A step of two commands, the first over two generations of the log and one that is not there."""
    calls = [
        replace(event, purpose=Purpose.CALL) if isinstance(event, RolloutRequested) else event
        for event in rollout_events(0, "call-a")
        if isinstance(event, RolloutRequested | RolloutCompleted)
    ]
    names = ("call-a-s0", "gone-s0", "call-a-s0")
    passed = command_given(0, CommandKind.FORWARD_BACKWARD, arguments={"loss_fn": "ppo"}, datums=DATUMS, samples=names)
    events_: list[Event] = [*calls, passed, command_given(1, CommandKind.OPTIM_STEP)]
    run = await long_run(1)
    for event in (record.envelope.event for record in run.log.records):  # type: ignore[attr-defined]
        if isinstance(event, BatchSealed):
            event = replace(event, groups=(), samples=(), rewards=(), raw_rewards=(), commands=("m-0", "m-1"))
        events_.append(event)
    return await lineage(await opened(events_, "long"), LineageQuery(kind=Kind.STEP, value="0"))


async def test_a_step_leads_to_its_commands_in_order() -> None:
    (step,) = (await driven()).steps
    assert [(c.command, c.kind, c.loss, c.source, c.datums) for c in step.commands] == [
        ("m-0", "forward_backward", "ppo", "team", 3), ("m-1", "optim_step", "", "team", 0)
    ]  # fmt: skip
    assert step.commands[0].samples == ("call-a-s0", "gone-s0", "call-a-s0")
    assert [command.given_at for command in step.commands] == [2, 3]


async def test_generations_of_its_datums_are_told_cached_as_far_as_they_are_known() -> None:
    answer = await driven()
    assert [(sample.sample, sample.reward, sample.step, sample.made_by) for sample in answer.samples] == [
        ("call-a-s0", None, None, (0,))
    ]
    assert (answer.groups, answer.sessions) == ((), ())
