"""A rollout that an agent makes, for the golden log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.event import Event, Purpose
from schemas.rollouts import FailureKind, RolloutFailed, RolloutRequested, Sampling, StopReason, WeightSpan
from schemas.sessions import Credit, SealReason, SessionOpened, SessionSealed
from schemas.turns import AgentTurn, RootReason, TurnBegun, TurnRecorded, TurnRole


def session(sampling: Sampling, digest: str) -> Iterator[Event]:
    """A rollout that an agent makes: one turn, and its end."""
    sample, group, prompt = "train-0-4-s0", "train-0-4", pack_tokens([1, 5])
    yield RolloutRequested(sample=sample, group=group, index=0, prompt=prompt, sampling=sampling, seed=1, agents=True)
    yield SessionOpened(sample=sample, attempt=0, group=group, sender="team", key="k", gateway="gateway-1")
    call = f"turn-0-{sample}"
    yield TurnBegun(sample=sample, index=0, role=TurnRole.ASSISTANT, asked=digest, engine="gateway-1", nonce="n")
    yield RolloutRequested(
        sample=f"{call}-s0",
        group=call,
        index=0,
        prompt=prompt,
        sampling=sampling,
        seed=2,
        purpose=Purpose.CALL,
        streams=True,
    )
    yield _turn(sample, digest)
    yield SessionSealed(
        sample=sample,
        attempt=0,
        reason=SealReason.EXIT,
        gateway="gateway-1",
        exit_code=1,
        reward=0.5,
        rewards={0: 0.5},
        leaves=(0,),
        orphans=(1,),
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


def _turn(sample: str, digest: str) -> TurnRecorded:
    return TurnRecorded(
        sample=sample,
        index=0,
        role=TurnRole.ASSISTANT,
        asked=digest,
        engine="engine-1",
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
            call=f"turn-0-{sample}-s0",
            messages=("0123456789abcdef",),
            answered="fedcba9876543210",
            frame="00" * 8,
            root=RootReason.FIRST,
            nearest=0,
            drift=1,
            rule="difference",
            request=pack([123, 125], "int8"),
            client="agent/1.0",
        ),
        seconds=0.5,
    )
