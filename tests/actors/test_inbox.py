"""Prompts from outside: taken in, trained on, or refused with every field that is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.doors import Room
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.envelope import enclose
from schemas.groups import GroupAccepted
from schemas.inbox import MAX_KEYS, OTHER_CONTENT, Fate, InboxFate, InboxFates, InboxPrompt, InboxReply
from schemas.prompts import PromptSubmitted
from schemas.steps import StepCommitted
from slime_events.core.config.data import DataSettings
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.loop.prompts.offered import offer
from slime_events.loop.prompts.prompt import BadReason
from storage.log import MAX_BATCH, MAX_EVENT_BYTES, Append
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import Letters
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run


async def send(sim: Simulation, message: Any) -> InboxReply:
    return await sim.inbox.accept(message if isinstance(message, bytes) else json.dumps(message).encode())


async def test_outside_prompts_are_trained_on_in_whose_step_is_known(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted)
        reply = await send(sim, [{"key": f"k{n}", "prompt": f"outside {n}", "label": "7"} for n in range(2)])
        again = await send(sim, {"key": "k0", "prompt": "outside 0", "label": "7"})
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert reply.accepted
    assert len(set(reply.groups)) == 2
    assert again == InboxReply(accepted=True, groups=reply.groups[:1])
    assert len(sim.events(PromptSubmitted, dataset="inbox")) == 2
    sealed = [group for batch in sim.events(BatchSealed) for group in batch.groups]
    assert set(reply.groups) <= set(sealed)


async def test_no_more_prompts_are_taken_than_may_wait(tmp_path: Path) -> None:
    """Until some of them are asked for."""
    async with Simulation(tmp_path, make_plan(steps=2), prompts=[]) as sim:
        sim.inbox._room = Room(5, {}).left
        first = await send(sim, [{"key": f"k{n}", "prompt": f"outside {n}"} for n in range(7)])
        refused = await send(sim, {"key": "late", "prompt": "outside"})
        assert first.accepted
        assert (refused.accepted, refused.full) == (False, True)
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted)
        assert (await send(sim, {"key": "late", "prompt": "outside"})).accepted
        assert await sim.finish() is RunPhase.FINISHED


async def test_a_run_on_outside_prompts_alone(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=2), prompts=[]) as sim:
        sim.start_engine(Script(chunk=8))
        await send(sim, [{"key": f"k{n}", "prompt": [{"role": "user", "content": str(n)}]} for n in range(4)])
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert sim.events(PromptSubmitted)[0].text == "<user>0"


async def test_a_key_twice_in_one_message_is_one_prompt(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        reply = await send(sim, [{"key": "k", "prompt": "p"}] * 2)
        assert len(set(reply.groups)) == 1
        assert len(reply.groups) == 2
        assert len(await sim.until(PromptSubmitted, dataset="inbox")) == 1


async def test_a_key_with_another_text_is_refused_and_the_rest_of_the_message_not_taken(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        first = await send(sim, {"key": "k", "prompt": "p", "metadata": {"a": 1, "b": 2}})
        again = await send(sim, {"metadata": {"b": 2, "a": 1}, "prompt": "p", "key": "k", "priority": 0})
        other = await send(sim, [{"key": "new", "prompt": "n"}, {"key": "k", "prompt": "q"}])
        twice = await send(sim, [{"key": "m", "prompt": "1"}, {"key": "m", "prompt": "2"}])
        assert again == first
        for refused in (other, twice):
            (error,) = refused.errors
            assert (refused.accepted, error.index, error.field) == (False, 1, "key")
            assert error.message.startswith(OTHER_CONTENT)
        assert len(sim.events(PromptSubmitted, dataset="inbox")) == 1


async def test_of_two_messages_at_once_with_one_key_one_is_taken(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        both = await asyncio.gather(*(send(sim, {"key": "k", "prompt": prompt}) for prompt in "pq"))
        assert [reply.accepted for reply in both] == [True, False]


async def test_what_was_offered_before_the_run_was_on_has_its_key(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=2), prompts=[]) as sim:
        await offer(sim.log, b'{"key": "k", "prompt": "p"}', "", "produce")
        assert not (await send(sim, {"key": "k", "prompt": "q"})).accepted
        assert (await send(sim, {"key": "k", "prompt": "p"})).accepted
        assert not (await offer(sim.log, b'{"key": "k", "prompt": "q"}', "", "produce")).accepted


@pytest.mark.parametrize(
    ("message", "errors"),
    [
        (b"{", [(0, "message")]),
        ([5], [(0, "prompt")]),
        ([{"key": str(n), "prompt": "p"} for n in range(MAX_BATCH + 1)], [(MAX_BATCH, "message")]),
        ([{"key": "a", "prompt": "p"}, {"key": "", "prompt": "p"}], [(1, "key")]),
        ([{"key": "a"}, {"key": "b", "prompt": 3}], [(0, "prompt"), (1, "prompt")]),
        ([{"key": "a", "prompt": "p", "colour": 1}], [(0, "colour")]),
        ([{"key": "", "prompt": "p"}, {"key": "b", "prompt": "x" * 300}], [(0, "key"), (1, "prompt")]),
        ([{"key": "a", "prompt": "p", "tools": {}}], [(0, "tools")]),
        ([{"key": "a", "prompt": "p", "metadata": {"rm_type": "maths"}}], [(0, "metadata.rm_type")]),
        ([{"key": "a", "prompt": "p", "metadata": {"rm_type": "remote_rm"}}], [(0, "metadata.rm_type")]),
        ([{"key": "a", "prompt": "p", "metadata": {"rm_type": "ifbench"}}], [(0, "metadata")]),
    ],
)
async def test_every_wrong_field_is_named_and_nothing_is_taken(
    tmp_path: Path, message: Any, errors: list[tuple[int, str]]
) -> None:
    async with Simulation(tmp_path) as sim:
        reply = await send(sim, message)
        assert not reply.accepted
        assert [(error.index, error.field) for error in reply.errors] == errors
        assert all(error.message for error in reply.errors)
        assert not sim.events(PromptSubmitted, dataset="inbox")


class ToolLetters(Letters):
    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        return json.dumps(kwargs.get("tools")) + super().apply_chat_template(conversation)


def submitted(**prompt: Any) -> PromptSubmitted:
    """Return the result of a prompt in a run with a chat template. Raises WrongField."""
    outside = OutsidePrompts(DataSettings(apply_chat_template=True), ToolLetters(), 200)
    return outside.submitted(InboxPrompt(key="k", **prompt))


def test_a_text_is_a_message_unless_it_is_said_to_be_rendered() -> None:
    wrapped, rendered = submitted(prompt="<user>2+2"), submitted(prompt="<user>2+2", rendered=True)
    assert (wrapped.text, wrapped.messages) == (
        "null<user><user>2+2",
        [{"role": "user", "content": "<user>2+2"}],
    )
    assert (rendered.text, rendered.messages) == ("<user>2+2", None)
    assert unpack(rendered.tokens).tolist() == [ord(letter) for letter in "<user>2+2"]


def test_chat_messages_cannot_be_rendered() -> None:
    with pytest.raises(WrongField, match=BadReason.WRONG_TYPE):
        submitted(prompt=[{"role": "user", "content": "2+2"}], rendered=True)


def test_tools_reach_the_chat_template() -> None:
    tools = [{"name": "add"}]
    prompt = submitted(prompt="2+2", tools=tools)
    assert (prompt.text, prompt.tools) == ('[{"name": "add"}]<user>2+2', tools)


class Message:
    headers = None
    reply = "_INBOX.1"

    def __init__(self, content: Any) -> None:
        self.data = json.dumps(content).encode()
        self.replies: list[InboxReply] = []

    async def respond(self, data: bytes) -> None:
        self.replies.append(msgspec.json.decode(data, type=InboxReply))


@pytest.mark.parametrize("unfit", [{"n": 2**70}, {"long": "x" * MAX_EVENT_BYTES}])
async def test_what_the_log_cannot_take_is_answered(tmp_path: Path, unfit: Any) -> None:
    """Answer with an error that stays: one without a field is to be sent again."""
    async with Simulation(tmp_path) as sim:
        message = Message([{"key": "a", "prompt": "p"}, {"key": "b", "prompt": "p", "metadata": unfit}])
        await sim.inbox._receive(message)
        (reply,) = message.replies
        assert not reply.accepted
        assert [(error.index, error.field) for error in reply.errors] == [(1, "prompt")]
        assert not sim.events(PromptSubmitted, dataset="inbox")


class Asked(Message):
    async def respond(self, data: bytes) -> None:
        self.answer = msgspec.json.decode(data, type=InboxFates)


async def ask(sim: Simulation, question: Any) -> InboxFates:
    message = Asked(question)
    await sim.inbox._tell(message)
    return message.answer


async def test_whoever_knows_a_key_hears_what_became_of_its_prompt(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as sim:
        reply = await send(sim, [{"key": "mine", "prompt": "outside", "label": "7"}])
        before = await ask(sim, {"keys": ["mine", "nobody's"]})
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
        (after,) = (await ask(sim, {"keys": ["mine"]})).groups
    assert [(group.key, group.fate) for group in before.groups] == [("mine", Fate.WAITING), ("nobody's", Fate.UNKNOWN)]
    (batch,) = [batch for batch in sim.events(BatchSealed) if reply.groups[0] in batch.groups]
    (step,) = sim.events(StepCommitted, step=batch.step)
    (verdict,) = sim.events(GroupAccepted, group=reply.groups[0])
    assert after == InboxFate("mine", reply.groups[0], Fate.TRAINED, verdict.rewards, "", batch.step, step.version)


async def test_why_a_prompt_was_not_trained_on_is_told(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1)) as sim:
        (group,) = (await send(sim, {"key": "mine", "prompt": "outside"})).groups
        rejected = made.rejected(group, reason="all the same", rewards=(1.0, 1.0))
        await sim.log.append([Append(enclose(sim.log.run, rejected, producer="conductor-1", at=1))])
        (fate,) = (await ask(sim, {"keys": ["mine"]})).groups
    assert fate == InboxFate("mine", group, Fate.REJECTED, (1.0, 1.0), "all the same")


@pytest.mark.parametrize("question", [{}, {"keys": []}, {"keys": ["k"] * (MAX_KEYS + 1)}, {"keys": ["k"], "run": "r"}])
async def test_a_question_that_is_none_is_answered(tmp_path: Path, question: Any) -> None:
    async with Simulation(tmp_path) as sim:
        (error,) = (await ask(sim, question)).errors
        assert error.field in ("keys", "run")
