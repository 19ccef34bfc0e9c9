"""`Measured`: what a run that is over says of its learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from schemas.workers import WorkerLost
from slime_events.core.tokens.trajectory import Fetch, Trajectories
from storage.log import Recorded

Responses = Mapping[str, tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]
"""Tokens and the engine's log-probs [response] by sample."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures by step, in order."""

    rewards: Annotated[Sequence[float], doc("mean raw reward")]
    held_out: Annotated[Sequence[float], doc("mean of each evaluation, the base checkpoint's first")]
    norms: Annotated[Sequence[float], doc("gradient norm")]
    agreement: Annotated[float, doc("largest log-prob difference of engine and trainer, of all tokens")]
    responses: Annotated[Sequence[Responses], doc("of each step")]
    lost: Annotated[Sequence[str], doc("roles of lost workers")]
    restored: Annotated[Sequence[TrainerRestored], doc("of trainers that took over")]

    @property
    def is_exact(self) -> bool:
        """Whether one trainer took over, with the committed weights and optimizer."""
        return [(event.weights, event.optimizer) for event in self.restored] == [(Fidelity.EXACT, Fidelity.EXACT)]


def measure(log: Sequence[Recorded], fetch: Fetch) -> Measured:
    """Return the figures of a whole log."""
    events = [recorded.envelope.event for recorded in log]
    trajectories = Trajectories(fetch)
    for recorded in log:
        trajectories.apply(recorded.envelope.event, recorded.position)
    batches = [event for event in events if isinstance(event, BatchSealed)]
    steps = [event for event in events if isinstance(event, StepCommitted)]
    rollouts = trajectories.by_sample
    return Measured(
        rewards=[float(np.mean(batch.raw_rewards)) for batch in batches],
        held_out=[event.mean for event in events if isinstance(event, EvalCompleted)],
        norms=[step.metrics["grad_norm"] for step in steps],
        agreement=max(step.metrics["logprob_agreement_max"] for step in steps),
        responses=[{name: (rollouts[name].tokens, rollouts[name].log_probs) for name in b.samples} for b in batches],
        lost=[event.role for event in events if isinstance(event, WorkerLost)],
        restored=[event for event in events if isinstance(event, TrainerRestored)],
    )


def equal_steps(run: Measured, alone: Measured) -> int:
    """Return the number of first steps that were trained on equal tokens."""
    steps = 0
    for ours, theirs in zip(run.responses, alone.responses, strict=False):
        if ours.keys() != theirs.keys() or not all(np.array_equal(ours[name][0], theirs[name][0]) for name in ours):
            break
        steps += 1
    return steps


def norm_difference(run: Measured, alone: Measured) -> float:
    """Return the largest relative difference of gradient norms, over `equal_steps`."""
    pairs = list(zip(run.norms, alone.norms, strict=False))[: equal_steps(run, alone)]
    return max((abs(ours - theirs) / theirs for ours, theirs in pairs), default=float("inf"))


def log_prob_difference(run: Measured, alone: Measured) -> float:
    """Return the largest difference of the engines' log-probs, up to each response's first token that differs.

    The steps are those of `equal_steps` and the next: its weights, too, come from equal tokens.
    """
    largest = 0.0
    for ours, theirs in list(zip(run.responses, alone.responses, strict=False))[: equal_steps(run, alone) + 1]:
        for name in ours.keys() & theirs.keys():
            (tokens, log_probs), (their_tokens, their_log_probs) = ours[name], theirs[name]
            shorter = min(len(tokens), len(their_tokens))
            equal = int(np.cumprod(tokens[:shorter] == their_tokens[:shorter]).sum())
            apart = np.abs(log_probs[:equal] - their_log_probs[:equal])
            largest = max(largest, float(apart.max(initial=0.0)))
    return largest
