"""A run on the chats of a data set, without engines and graders."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from actors.debug.supervised import Supervised
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.data import DataSettings
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.loss_masks import loss_masks_of
from tests.data.test_loss_masks import CHATML, tokenizer
from tests.harness.history.checker import check
from tests.replay.replayed import policy_for, replayed
from tests.simulation.roles import inline
from tests.simulation.simulation import Simulation, make_plan

PLAN = make_plan(steps=3, groups=2, samples=1)


def chat(number: int) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": f"{number}+1"}, {"role": "assistant", "content": str(number + 1)}]
    more = [{"role": "user", "content": f"{number}-1"}, {"role": "assistant", "content": str(number - 1)}]
    return messages + more if number % 2 else messages


async def test_chats_become_rollouts_and_nobody_generates(tmp_path: Path) -> None:
    rows: list[Any] = [chat(number) for number in range(4)]
    lines = [*rows[:2], [{"role": "user", "content": "no answer"}], *rows[2:]]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines))
    data = DataSettings(prompt_data=str(file), input_key="messages", supervised=True)
    chat_tokenizer = tokenizer(CHATML)
    feed = PromptFeed(PromptSource(data, 0, chat_tokenizer, 200), {}, data, chat_tokenizer)
    async with Simulation(tmp_path, PLAN, feed=feed) as sim:
        masks = loss_masks_of(chat_tokenizer, "qwen")
        source = asyncio.create_task(Supervised(Participant(sim.log, "loader"), masks, inline).run())
        assert await sim.finish() is RunPhase.FINISHED
        await source
    assert [event.reason.partition(":")[0] for event in sim.events(PromptRejected)] == ["empty_prompt"]
    prompts = {event.group: event for event in sim.events(PromptSubmitted)}
    trained = [sample for batch in sim.ranks.trained for sample in batch.samples]
    assert len(trained) == 6
    for sample in trained:
        tokens, mask = masks.get_loss_mask(prompts[sample.group].messages or [])
        first = mask.index(1)
        assert sample.tokens.tolist() == tokens
        assert sample.loss_mask.tolist() == mask[first:]
        assert not sample.rollout_log_probs.any()
    assert [sample.tokens.tolist() for sample in trained[4:]] == [sample.tokens.tolist() for sample in trained[:2]]
    assert {event.value for event in sim.events(RewardAssigned)} == {0.0}
    assert {batch.rewards for batch in sim.events(BatchSealed)} == {(0.0, 0.0)}
    two_turns = [event for event in sim.events(RolloutCompleted) if event.loss_mask is not None]
    assert two_turns
    assert all(event.text.endswith("<|im_end|>\n") for event in sim.events(RolloutCompleted))
    raw = [(r.position, r.subject, r.data) for r in sim.log.records]
    assert check(raw, bound=PLAN.staleness_bound) == []
    again = replayed(sim.log.records, policy_for(PLAN))
    assert again.is_equal, again.differences[0]
    auditor = Audit("sim", rules=Rules(PLAN, AlgorithmSettings()), fetch=unpack, files=False)
    for record in sim.log.records:
        auditor.apply(record)
    assert [finding for part in auditor.finish().checks for finding in part.findings] == []


async def test_a_chat_with_a_token_that_the_model_has_not_is_failed_with_it(tmp_path: Path) -> None:
    """A special token that was added to the tokenizer alone, say."""
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat(number)}) + "\n" for number in range(4)))
    data = DataSettings(prompt_data=str(file), input_key="messages", supervised=True)
    chat_tokenizer = tokenizer(CHATML)
    feed = PromptFeed(PromptSource(data, 0, chat_tokenizer, 200), {}, data, chat_tokenizer)
    masks = loss_masks_of(chat_tokenizer, "qwen")
    highest = max(max(masks.get_loss_mask(chat(number))[0]) for number in range(4))
    async with Simulation(tmp_path, PLAN, feed=feed) as sim:
        source = asyncio.create_task(Supervised(Participant(sim.log, "loader"), masks, inline, highest).run())
        failed = await sim.until(RolloutFailed)
        source.cancel()
        await asyncio.gather(source, return_exceptions=True)
    assert failed[0].kind is FailureKind.INVALID
    assert f"token {highest} is not in the model's vocabulary of {highest}" in failed[0].message
    assert not sim.ranks.trained
