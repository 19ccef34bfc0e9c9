"""A rollout that an agent makes, for the golden log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.event import Event, Purpose
from schemas.rollouts import (
    FailureKind,
    Maker,
    RolloutFailed,
    RolloutRequested,
    Sampling,
    StopReason,
    TurnEnd,
    WeightSpan,
)
from schemas.sessions import Credit, SealReason, SessionOpened, SessionSealed
from schemas.turns import AgentTurn, RootReason, SharedBody, TurnBegun, TurnRecorded, TurnRole


def session(sampling: Sampling, digest: str) -> Iterator[Event]:
    """A rollout that an agent makes: two turns, and its end."""
    sample, group, prompt = "train-0-4-s0", "train-0-4", pack_tokens([1, 5])
    yield RolloutRequested(
        sample=sample, group=group, index=0, prompt=prompt, sampling=sampling, seed=1, maker=Maker.AGENT
    )
    yield SessionOpened(sample=sample, attempt=0, group=group, sender="team", key="k", gateway="gateway-1")
    for index in (0, 1):
        call = f"turn-{index}-{sample}"
        begun = TurnBegun(
            sample=sample, index=index, role=TurnRole.ASSISTANT, asked=digest, engine="gateway-1", nonce="n"
        )
        yield begun
        yield RolloutRequested(
            sample=f"{call}-s0",
            group=call,
            index=0,
            prompt=prompt,
            sampling=sampling,
            seed=2,
            purpose=Purpose.CALL,
            streams=True,
            after=TurnEnd(sample, 0, 4) if index else None,
        )
        yield _turn(sample, index, digest)
    yield SessionSealed(
        sample=sample,
        attempt=0,
        reason=SealReason.EXIT,
        gateway="gateway-1",
        exit_code=1,
        reward=0.5,
        rewards={1: 0.5},
        leaves=(1,),
        orphans=(2,),
        credit=Credit.LAST,
        metadata={"task": "a"},
        turns=2,
        seconds=1.5,
        discount=0.5,
    )
    yield RolloutFailed(
        sample=sample,
        group=group,
        attempt=0,
        kind=FailureKind.AGENT,
        message="its program ended with exit code 1",
        engine="gateway-1",
    )


def _turn(sample: str, index: int, digest: str) -> TurnRecorded:
    return TurnRecorded(
        sample=sample,
        index=index,
        role=TurnRole.ASSISTANT,
        asked=digest,
        engine="engine-1",
        extends=0 if index else None,
        observed=pack_tokens([1, 5]),
        length=2,
        tokens=pack_tokens([7, 8]),
        log_probs=pack_log_probs([-0.5, -1.0]),
        spans=(WeightSpan(0, 2, 0),),
        stop=StopReason.STOP,
        text="5 ✓",
        agent=AgentTurn(
            key=digest,
            dialect="chat",
            call=f"turn-{index}-{sample}-s0",
            messages=("0123456789abcdef",),
            answered="fedcba9876543210",
            frame="00" * 8,
            root=None if index else RootReason.FIRST,
            nearest=None if index else 0,
            drift=None if index else 1,
            rule="difference",
            request=pack([123, 125], "int8"),
            shares=SharedBody(0, 1, 1) if index else None,
            client="agent/1.0",
        ),
        seconds=0.5,
    )
