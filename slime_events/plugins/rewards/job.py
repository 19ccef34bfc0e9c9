"""`Unit`: one call of a grader on its way to a process."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec

from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure
from slime_events.plugins.sample import Sample


class Unit:
    """A unit on its way. payload: its encoded form; future: who waits for it; deaths: how often a process died on it;
    alone: it is sent without others.
    """

    __slots__ = ("alone", "deaths", "future", "payload", "samples")

    def __init__(self, payload: bytes, samples: int) -> None:
        self.payload = msgspec.Raw(payload)
        self.samples = samples
        self.future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.deaths = 0
        self.alone = False

    def resolve(self, outcomes: list[Outcome]) -> None:
        """Whoever waits gets them; what comes later is let go."""
        if not self.future.done():
            self.future.set_result(outcomes)

    def fail(self, kind: RewardFailureKind, message: str, ready: messages.Ready, seconds: float = 0.0) -> None:
        """The same failure for each of its samples. ready: whose grader it was."""
        failure = RewardFailure(
            kind=kind, message=message, seconds=seconds, grader=ready.grader, grader_digest=ready.digest
        )
        self.resolve([failure] * self.samples)


def slim(sample: Sample, settings: RewardSettings) -> Sample:
    """Without the arrays that no built-in grader reads: at 4k tokens they are most of the cost of sending."""
    if settings.custom_rm_path or sample.custom_rm_path:
        return sample
    return dataclasses.replace(sample, tokens=[], loss_mask=None, rollout_log_probs=None)
