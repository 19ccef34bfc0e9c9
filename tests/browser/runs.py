"""Runs to look at: the small run, one whose samples are agents' sessions with tools, and one of hostile texts."""

from __future__ import annotations

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.prompts import Source
from schemas.rollouts import Maker, WeightSpan
from schemas.turns import AgentTurn, RootReason, ToolCall, TurnRole
from slime_events.core.tokens.trajectory import content_digest
from tests import made

AGENT_GROUP = "train-0-000000"
QUESTION = "What is 2+3?"


def agent_events() -> list[Event]:
    """A finished step of one group of two sessions: each calls a tool, and asks a subagent."""
    samples = tuple(f"{AGENT_GROUP}-s{index}" for index in range(2))
    source = Source(path="train.jsonl", line=1, row=0, offset=0)
    events: list[Event] = [
        made.started({"rollout": {"num_rollout": 1}}),
        made.published(url="weights/0", bytes=1000),
        made.activated(engine="engine-1", lag=0.2),
        made.submitted(AGENT_GROUP, text=QUESTION, tokens=[1, 2, 3], source=source, label="5"),
    ]
    for number, sample in enumerate(samples):
        events += [made.requested(sample, prompt=[1, 2, 3], maker=Maker.AGENT), *_turns(sample)]
        events += [_completed(sample), made.assigned(sample, value=float(number), grader="exact")]
    events += [
        made.accepted(AGENT_GROUP, samples=samples, rewards=(0.0, 1.0), figures={"mean": 0.5}),
        made.sealed(
            0, groups=(AGENT_GROUP,), samples=samples, rewards=(-1.0, 1.0), raw_rewards=(0.0, 1.0), digest="b0",
        ),
        made.committed(0, batch_digest="b0", samples=2, tokens=14, metrics={"loss": 0.25}, seconds={"train": 0.3}),
        made.published(1, parent=0, url="weights/1", bytes=1000),
        made.activated(1, engine="engine-1", lag=0.2),
        made.finished(steps=1),
    ]  # fmt: skip
    return events


def _turns(sample: str) -> list[Event]:
    def agent(turn: int, root: RootReason | None = None) -> AgentTurn:
        nearest = 0 if root is RootReason.SUBAGENT else None
        return AgentTurn(key=f"k{turn}", dialect="openai", call=f"call-{turn}", root=root, nearest=nearest)

    spans, call = (WeightSpan(0, 2, 0),), ToolCall(name="calculator", arguments={"expression": "2+3"})
    shared = {"length": 2, "tokens": pack_tokens([10, 11]), "log_probs": pack_log_probs([-0.5, -4.0])}
    return [
        made.turn(sample, 0, text="let me see", spans=spans, agent=agent(0, RootReason.FIRST), seconds=0.5, **shared),
        made.turn(sample, 1, role=TurnRole.TOOL, extends=0, call=call, result={"value": 5}, seconds=0.02),
        made.turn(
            sample, 2, extends=0, observed=pack_tokens([5]), text="it is 5", spans=spans, agent=agent(2), **shared
        ),
        made.turn(sample, 3, text="agreed", spans=spans, agent=agent(3, RootReason.SUBAGENT), **shared),
        made.turn(sample, 4, role=TurnRole.TOOL, extends=3, call=call, error="the tool was away", seconds=1.5),
    ]


def _completed(sample: str) -> Event:
    ids, chances = [10, 11, 5, 10, 11], [-0.5, -4.0, 0.0, -0.5, -4.0]
    return made.completed(
        sample, ids, chances, prompt_length=3, text="let me see it is 5", engine="engine-1",
        spans=(WeightSpan(0, 2, 0), WeightSpan(3, 5, 0)), digest=content_digest(ids, chances),
    )  # fmt: skip
