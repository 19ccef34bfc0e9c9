"""Build what producers send while no conductor runs, for the golden log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.prompts import PromptOffered, PromptRejected, PromptSubmitted, Source
from schemas.recorded import CommonVersion, Recalled
from schemas.rollouts import RolloutOffered, StopReason


def from_outside() -> Iterator[Event]:
    """A prompt that waits, one that was none, and a finished rollout."""
    yield PromptOffered(
        group="inbox-2",
        key="k-2",
        prompt=[{"role": "user", "content": "2+4"}],
        sender="quiz",
        label="6",
        metadata={"level": 1},
        tools=[{"type": "function"}],
    )
    yield PromptOffered(group="inbox-3", key="k-3", prompt="2+5", rendered=True, priority=2)
    source = Source(path="inbox", key="k-3", sender="quiz", offset=-1)
    yield PromptRejected(source=source, reason="empty_prompt: none", dataset="inbox", group="inbox-3")
    yield PromptSubmitted(
        group="inbox-4",
        text="2+4=",
        tokens=pack_tokens([1, 2]),
        source=Source(path="inbox", key="k-4", sender="quiz"),
        dataset="inbox",
        recalled=Recalled("golden", ("inbox-4-s0",), CommonVersion(0, 0), 0, 8),
        share="quiz",
        priority=-3,
    )
    yield RolloutOffered(
        sample="inbox-4-s0",
        group="inbox-4",
        tokens=pack_tokens([5, 6]),
        text="6",
        version=0,
        stop=StopReason.STOP,
        log_probs=pack_log_probs([-0.5, -0.25]),
        loss_mask=pack([1, 0], "int8"),
        reward=1.0,
        sender="quiz",
        metadata={"tool": "none"},
    )
