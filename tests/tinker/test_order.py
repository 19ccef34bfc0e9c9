"""The fold of a client's commands: whatever order they arrive in, however often, they come out in one order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import CommandDone, CommandGiven, CommandKind
from slime_events.core.training.datums import Datum, pack_datums
from slime_events.loop.commands.order import CommandOrder

OTHERS = [kind for kind in CommandKind if kind is not CommandKind.CREATE_MODEL]


def given_of(number: int, kind: CommandKind, model: str = "tinker-0-m0") -> CommandGiven:
    command = f"{model}-{number:06d}"
    return CommandGiven(command=command, model=model, number=number, kind=kind, arguments={"n": number})


def calls(kinds: list[CommandKind]) -> list[CommandGiven]:
    return [given_of(number, kind) for number, kind in enumerate([CommandKind.CREATE_MODEL, *kinds])]


def folded(events: list[Any], first: int = 0) -> CommandOrder:
    order = CommandOrder(first=first)
    for event in events:
        order.apply(event)
    return order


def shape(order: CommandOrder) -> Any:
    return [(due.command.command, due.step) for due in order.due.values()], {
        step: (batch.commands, batch.digest) for step, batch in order.batches.items()
    }


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[CommandGiven], list[CommandGiven]]:
    """Calls, and how they arrive: their creation first, since its answer names the model."""
    sent = calls(draw(st.lists(st.sampled_from(OTHERS), max_size=12)))
    doubled = draw(st.lists(st.sampled_from(sent), max_size=6))
    return sent, [sent[0], *draw(st.permutations([*sent[1:], *doubled]))]


@given(arrivals())
def test_order_of_arrival_and_repeats_change_nothing(case: tuple[list[CommandGiven], list[CommandGiven]]) -> None:
    sent, arrived = case
    assert shape(folded(arrived)) == shape(folded(sent))


@given(arrivals(), st.data())
def test_nothing_after_a_lost_call_is_carried_out_until_it_comes(
    case: tuple[list[CommandGiven], list[CommandGiven]], data: st.DataObject
) -> None:
    sent, arrived = case
    lost = data.draw(st.integers(0, len(sent) - 1))
    missing = [event for event in arrived if event.number != lost]
    assert shape(folded(missing)) == shape(folded(sent[:lost] if lost else []))
    if lost:
        assert shape(folded([*missing, sent[lost]])) == shape(folded(sent))


@given(arrivals(), st.integers(0, 12), st.booleans())
def test_outcomes_may_be_folded_before_or_after_their_calls(
    case: tuple[list[CommandGiven], list[CommandGiven]], count: int, first: bool
) -> None:
    sent, arrived = case
    ended = [CommandDone(command=command.command, version=0) for command in sent[:count]]
    order = folded([*ended, *arrived] if first else [*arrived, *ended])
    assert list(order.due) == [command.command for command in sent[count:]]


def test_a_step_is_what_stands_between_two_updates() -> None:
    passed, stepped, forward = CommandKind.FORWARD_BACKWARD, CommandKind.OPTIM_STEP, CommandKind.FORWARD
    order = folded(calls([passed, forward, passed, stepped, stepped, passed]), first=4)
    batches = {step: [int(name[-6:]) for name in batch.commands] for step, batch in order.batches.items()}
    assert batches == {4: [1, 3, 4], 5: [5]}
    assert [due.step for due in order.due.values()] == [4, 4, 4, 4, 4, 5, 6]


def test_a_new_model_begins_with_a_step_and_the_one_before_it_is_refused() -> None:
    passed, stepped = CommandKind.FORWARD_BACKWARD, CommandKind.OPTIM_STEP
    other = given_of(0, CommandKind.CREATE_MODEL, "tinker-1-m0")
    late = given_of(4, stepped)
    order = folded([*calls([passed, stepped, passed]), other, late, given_of(1, stepped, "tinker-1-m0")])
    assert [(batch.commands[-1], len(batch.commands)) for batch in order.batches.values()] == [
        ("tinker-0-m0-000002", 2),
        (other.command, 1),
        ("tinker-1-m0-000001", 1),
    ]
    assert [name for name, due in order.due.items() if due.refused] == [late.command]


def test_what_an_earlier_model_lacked_a_call_for_is_refused_with_it() -> None:
    sent = calls([CommandKind.OPTIM_STEP] * 3)
    order = folded([sent[0], sent[2], sent[3], given_of(0, CommandKind.CREATE_MODEL, "tinker-1-m0"), sent[1]])
    assert {name for name, due in order.due.items() if due.refused} == {command.command for command in sent[1:]}
    assert len(order.batches) == 1


def test_the_digest_of_a_batch_is_of_what_its_commands_ask() -> None:
    kinds = [CommandKind.FORWARD_BACKWARD, CommandKind.OPTIM_STEP]
    first, two = calls(kinds), calls(kinds)
    ids = np.array([1], np.int32)
    changed = pack_datums([Datum(ids, ids, {})])
    two[1] = CommandGiven(command=two[1].command, model=two[1].model, number=1, kind=two[1].kind, datums=changed)
    assert folded(first).batches[0].commands == folded(two).batches[0].commands
    assert folded(first).batches[0].digest != folded(two).batches[0].digest
