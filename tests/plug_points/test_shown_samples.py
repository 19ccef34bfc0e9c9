"""A filter, a post-processing and a grader are shown the same sample, whatever its prompt and its rollout have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import Place, RolloutCompleted, WeightSpan
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState, state_digest
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample, group_samples
from slime_events.plugins.texts import Texts
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests.cli.small_run import GROUPS, RUN, events, recorded

TOOLS = [{"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}]
PROMPTS: dict[str, dict[str, Any]] = {
    "a text": {},
    "tools": {"tools": TOOLS, "metadata": {"row": 3}},
    "messages without a template": {"chat": True},
    "metadata that is not an object": {"tools": TOOLS, "metadata": [1, 2]},
    "attributes": {"attributes": {"level": 3, "calls": 9}},
    "paths of its own": {"generate_function_path": "own.generate", "custom_rm_path": "own.reward"},
}
ROLLOUTS: dict[str, dict[str, Any]] = {
    "as the engine made it": {},
    "metadata and attributes": {"metadata": {"seen": [1]}, "attributes": {"calls": 3, "label": "mine"}},
    "metadata replaced": {"attributes": {"metadata": {"mine": 1}}},
    "two versions": {"spans": (WeightSpan(0, 1, 2), WeightSpan(1, 3, 4))},
    "three versions": {"spans": (WeightSpan(0, 1, 2), WeightSpan(1, 2, 4), WeightSpan(2, 3, 7))},
    "a prompt of its own": {"prompt_text": "mine"},
}


def records_of(prompt: dict[str, Any], rollout: dict[str, Any]) -> list[Recorded]:
    """A run whose prompts and rollouts have these fields, each reward with metadata of its grader."""
    first, events_ = GROUPS[0], list[Event]()
    for event in events():
        if isinstance(event, PromptSubmitted) and event.group == first:
            event = replace(event, **prompt)
        elif isinstance(event, RolloutCompleted) and event.group == first:
            own = {"prompt": event.tokens} if "prompt_text" in rollout else {}
            event = replace(event, **rollout, **own, place=Place(int(event.sample[-1]), 0))
        elif isinstance(event, RewardAssigned) and event.group == first:
            event = replace(event, detail={"metadata": {"raw_reward": event.value}})
        events_.append(event)
    return recorded(events_)


def shown_to_graders(records: Sequence[Recorded]) -> list[dict[str, Any]]:
    """Graded: as each grader's sample was when it had returned."""
    prompts: dict[str, PromptSubmitted] = {}
    samples: dict[str, Sample] = {}
    for event in (record.envelope.event for record in records):
        if isinstance(event, PromptSubmitted):
            prompts[event.group] = event
        elif isinstance(event, RolloutCompleted) and event.group == GROUPS[0]:
            samples[event.sample] = completed_sample(event, prompts[event.group])
        elif isinstance(event, RewardAssigned) and event.group == GROUPS[0]:
            samples[event.sample].reward = event.value
            if isinstance(samples[event.sample].metadata, dict):
                samples[event.sample].metadata["raw_reward"] = event.value
    return [sample.to_dict() for sample in samples.values()]


@pytest.mark.parametrize("rollout", ROLLOUTS)
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_filter_sees_the_sample_of_the_grader(prompt: str, rollout: str) -> None:
    records = records_of(PROMPTS[prompt], ROLLOUTS[rollout])
    state, texts, compared = RunState(run=RUN), Texts(), 0
    for number, record in enumerate(records):
        event = record.envelope.event
        if isinstance(event, GroupAccepted | GroupRejected) and event.group == GROUPS[0]:
            log = MemoryLog(RUN)
            await log.restore(records[:number])
            again = Texts()
            await again.restore(log, state)
            for folded in (texts, again):
                shown = group_samples(folded.with_texts(state.groups[event.group]))
                assert [sample.to_dict() for sample in shown if isinstance(sample, Sample)] == shown_to_graders(records)
            compared += 1
        apply(state, record)
        texts.apply(event, state)
    assert compared == 1
    assert not texts._prompts, "nothing is kept of decided groups"
    assert state_digest(state)


async def test_nothing_is_kept_of_groups_that_have_left_the_state() -> None:
    """Release them although rewards of a batch are computed from them, so that their verdict is not their end."""
    state, texts, kept = RunState(run=RUN), Texts(until_trained=True), 0
    for record in records_of(PROMPTS["tools"], ROLLOUTS["as the engine made it"]):
        apply(state, record)
        texts.apply(record.envelope.event, state)
        kept = max(kept, len(texts._prompts))
        assert texts._prompts.keys() <= state.groups.keys()
    assert kept == 1
    assert GROUPS[0] not in state.groups
