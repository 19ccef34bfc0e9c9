"""Generate the log of a long run without running it, with all events and digests of a real run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.event import Event
from schemas.groups import GroupAccepted
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, StopReason, WeightSpan
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.algorithms.estimators.estimator import normalize_group
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.tokens.trajectory import content_digest
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.seal import batch_digest

GROUPS, SAMPLES, TOKENS, PROMPT = 8, 8, 32, 16
CHECKPOINT_EVERY = 100
PER_STEP = GROUPS * (2 + 3 * SAMPLES) + 4
"""Events of a step: prompt, requests, completions, rewards and verdict of each group, then batch, step and weights."""

_PROMPT = pack_tokens(range(PROMPT))
_TOKENS, _LOG_PROBS = pack_tokens(range(TOKENS)), pack_log_probs([-0.5] * TOKENS)
_DIGEST = content_digest(list(range(TOKENS)), [-0.5] * TOKENS)  # type: ignore[arg-type]
_REWARDS = tuple(float(index % 2) for index in range(SAMPLES))
_NORMALISED = tuple(normalize_group(_REWARDS, scale=True))


def long_plan(steps: int) -> Plan:
    """Return the plan of such a run."""
    return Plan(
        steps=steps,
        groups=GROUPS,
        samples=SAMPLES,
        sampling=Sampling(max_new_tokens=TOKENS),
        saves=SaveSteps(CHECKPOINT_EVERY),
    )


def beginning(settings: Mapping[str, Any] | None = None) -> Iterator[Event]:
    """Yield the events up to the first weights. settings: settings of the run, as plain values."""
    yield RunStarted(settings=dict(settings or {}), code_version="")
    yield WeightsPublished(version=0, parent=None, url="", digest="w0", bytes=0)
    yield WeightsActivated(version=0, engine="engine", digest="w0", seconds=0.0)


def undecided(step: int) -> Iterator[Event]:
    """Yield a step's groups, generated and graded, up to the point where the conductor decides."""
    for name in _groups(step):
        offset = int(name.rpartition("-")[2])
        source = Source(path="prompts", offset=offset)
        yield PromptSubmitted(group=name, text="2+2=", label="4", tokens=_PROMPT, source=source)
        for index, sample in enumerate(_samples(name)):
            yield RolloutRequested(
                sample=sample, group=name, index=index, prompt=_PROMPT, sampling=Sampling(max_new_tokens=TOKENS),
                seed=index, min_version=step,
            )  # fmt: skip
        for sample in _samples(name):
            yield RolloutCompleted(
                sample=sample, group=name, attempt=0, start=0, length=TOKENS, prompt_length=PROMPT,
                stop=StopReason.LENGTH, text="4", spans=(WeightSpan(0, TOKENS, step),), digest=_DIGEST,
                engine="engine", tokens=_TOKENS, log_probs=_LOG_PROBS,
            )  # fmt: skip
        for sample, reward in zip(_samples(name), _REWARDS, strict=True):
            yield RewardAssigned(sample=sample, group=name, value=reward, grader="exact", grader_digest="")


def sealed(step: int) -> Iterator[Event]:
    """Yield the conductor's decisions about a step's groups."""
    for name in _groups(step):
        figures = {"count": float(SAMPLES), "mean": sum(_REWARDS) / SAMPLES, "min": 0.0, "max": 1.0}
        yield GroupAccepted(group=name, samples=_samples(name), rewards=_REWARDS, figures=figures)
    samples = tuple(sample for name in _groups(step) for sample in _samples(name))
    rewards = _NORMALISED * GROUPS
    yield BatchSealed(
        step=step, groups=_groups(step), samples=samples, rewards=rewards, raw_rewards=_REWARDS * GROUPS,
        digest=_batch_digest(step, samples, rewards), oldest_version=step,
    )  # fmt: skip


def trained(step: int) -> Iterator[Event]:
    """Yield the events of trainer and engine after a step's decisions."""
    version, tokens = step + 1, GROUPS * SAMPLES * (PROMPT + TOKENS)
    samples = tuple(sample for name in _groups(step) for sample in _samples(name))
    yield StepCommitted(
        step=step, batch_digest=_batch_digest(step, samples, _NORMALISED * GROUPS), parent_version=step,
        version=version, weights_digest=f"w{version}", optimizer_digest=f"o{version}", samples=GROUPS * SAMPLES,
        tokens=tokens,
    )  # fmt: skip
    yield WeightsPublished(version=version, parent=step, url="", digest=f"w{version}", bytes=0)
    yield WeightsActivated(version=version, engine="engine", digest=f"w{version}", seconds=0.0)
    if version % CHECKPOINT_EVERY == 0:
        yield CheckpointSaved(
            version=version, url="", weights_digest=f"w{version}", optimizer_digest=f"o{version}", seconds=0.0
        )


def long_log(steps: int, settings: Mapping[str, Any] | None = None) -> Iterator[Event]:
    """Yield `steps` whole steps, and the undecided groups of the next step."""
    yield from beginning(settings)
    for step in range(steps):
        yield from undecided(step)
        yield from sealed(step)
        yield from trained(step)
    yield from undecided(steps)


def _groups(step: int) -> tuple[str, ...]:
    return tuple(f"train-0-{step * GROUPS + number:07d}" for number in range(GROUPS))


def _samples(group: str) -> tuple[str, ...]:
    return tuple(f"{group}-s{index}" for index in range(SAMPLES))


def _batch_digest(step: int, samples: tuple[str, ...], rewards: tuple[float, ...]) -> str:
    return batch_digest(step, [(sample, _DIGEST, reward) for sample, reward in zip(samples, rewards, strict=True)])
