"""`EngineSpeed`: how long a rollout takes, by its tokens and by what else its engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.analysis.what_if.intervals import Interval, Load, Seconds
from slime_events.analysis.what_if.least_squares import fit
from slime_events.analysis.what_if.timed_rollouts import TimedRollout

FEWEST = 20
"""Fewest rollouts for a fit."""
TRIED = (0.0, *(1e-5 * 1.25**power for power in range(60)))
"""Times of a prompt that are tried [s], up to 5 s: this time says how long prompts wait for each other."""
LEAST_OVERLAP = 0.05
"""Least share of the rollouts' time with training at the same time from which its effect is fitted."""


class EngineSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a rollout with L tokens: `per_rollout + per_prompt p + L (per_token + per_running n + per_training t)`.

    p: prompts that the engine computes before and meanwhile; then it generates no tokens. n: mean number of rollouts.
    t: share of the time in which the trainer trains. Chunks and tool calls come on top.
    """

    per_rollout: Annotated[float, doc("fixed time [s]")]
    per_prompt: Annotated[float, doc("time of a prompt's forward pass, one prompt after the other [s]")]
    per_token: Annotated[float, doc("time per token, however many rollouts run [s]")]
    per_running: Annotated[float, doc("further time per token and running rollout [s]")]
    per_training: Annotated[float, doc("further time per token while the trainer trains [s]")] = 0.0
    per_chunk: Annotated[float, doc("time per chunk that is appended before the end [s]")] = 0.0
    error: Annotated[float, doc("mean absolute error of the fit, as a share of the mean time of a rollout")] = 0.0
    rollouts: Annotated[int, doc("rollouts that were fitted")] = 0
    most_running: Annotated[int, doc("most rollouts at once that were seen on one engine")] = 0
    with_chunks: Annotated[bool, doc("whether any rollout appended a chunk before its end")] = False
    overlap: Annotated[float, doc("share of the rollouts' time in which the trainer trained too")] = 0.0

    def seconds_per_token(self, running: int, *, training: bool) -> float:
        """Return the time of a token of each of `running` rollouts [s]."""
        return self.per_token + self.per_running * running + (self.per_training if training else 0.0)

    def seconds_alone(self, tokens: int, chunk: int) -> float:
        """Return the time of a rollout that does not depend on the others [s]. chunk: tokens of a chunk."""
        return self.per_rollout + self.per_chunk * (max(0, tokens - 1) // chunk)


def fit_engines(
    rollouts: Sequence[TimedRollout], pauses: dict[str, list[Interval]], training: Sequence[Interval], chunk: int
) -> EngineSpeed:
    """Return the speed that fits these rollouts.

    pauses: of each engine, while it loads weights. training: times of the trainer's steps. chunk: tokens of a chunk.

    Raises InvalidValue if there are too few rollouts.
    """
    if len(rollouts) < FEWEST:
        raise InvalidValue(
            f"only {len(rollouts)} rollouts were made by an engine in one attempt: {FEWEST} are needed to know how "
            "fast the engines are"
        )
    by_engine: dict[str, list[TimedRollout]] = {}
    for rollout in rollouts:
        by_engine.setdefault(rollout.engine, []).append(rollout)
    trained = Load(training)
    parts = [_Seen(members, Load(pauses.get(engine, ())), trained, chunk) for engine, members in by_engine.items()]
    overlap = sum(float(seen.overlap.sum()) for seen in parts) / sum(float(seen.length.sum()) for seen in parts)
    best, prompt = None, 0.0
    for tried in TRIED:
        columns = [seen.columns(tried, with_training=overlap >= LEAST_OVERLAP) for seen in parts]
        left = [seen.seconds - seen.computing(tried) for seen in parts]
        fitted = fit(np.concatenate(columns), np.concatenate(left))
        if best is None or fitted.squares < best.squares:
            best, prompt = fitted, tried
    assert best is not None
    names = ("per_rollout", "per_token", "per_running", "per_training", "per_chunk")
    return EngineSpeed(
        **dict(zip(names, best.coefficients, strict=True)),
        per_prompt=prompt,
        error=best.error / float(np.concatenate([seen.length for seen in parts]).mean()),
        rollouts=len(rollouts),
        most_running=max(seen.most_running for seen in parts),
        with_chunks=any(seen.chunks.any() for seen in parts),
        overlap=overlap,
    )


class _Seen:
    """The rollouts of one engine, in the order of their begin."""

    def __init__(self, rollouts: Sequence[TimedRollout], pauses: Load, trained: Load, chunk: int) -> None:
        def numbers(name: str) -> Seconds:
            return np.array([getattr(rollout, name) for rollout in rollouts], np.float64)

        self.begins, self.ends = numbers("begin"), numbers("end")
        self.tokens = numbers("tokens")
        # Chunks that are appended because time has passed do not count: slow rollouts have them.
        self.chunks = np.maximum(0.0, self.tokens - 1) // chunk
        self.length = np.maximum(self.ends - self.begins, 1e-9)
        self.seconds = np.maximum(0.0, self.length - numbers("tools") - pauses.busy(self.begins, self.ends))
        self.overlap = trained.busy(self.begins, self.ends)
        self.most_running = Load(zip(self.begins, self.ends, strict=True)).most

    def computing(self, prompt: float) -> Seconds:
        """Return how long the engine computes prompts during each rollout, if one takes so long [s].

        These are its own, those that are not computed yet when it begins, and those that begin before its end.
        """
        later = np.searchsorted(self.begins, self.ends) - np.arange(1, len(self.begins) + 1)
        return np.asarray(_free_at(self.begins, prompt) - self.begins + prompt * later)

    def columns(self, prompt: float, *, with_training: bool) -> Seconds:
        """Return what the rest of each rollout's time depends on [rollouts, 5]."""
        decoding = np.minimum(_free_at(self.begins, prompt), self.ends)
        load = Load(zip(decoding, self.ends, strict=True))
        running = load.covered(decoding, self.ends) / np.maximum(self.ends - decoding, 1e-9)
        training = self.tokens * self.overlap / self.length * with_training
        ones = np.ones(len(self.begins))
        return np.stack([ones, self.tokens, self.tokens * running, training, self.chunks], axis=1)


def _free_at(begins: Seconds, prompt: float) -> Seconds:
    """Return when the prompt of each rollout and all before it are computed, one after the other."""
    places = np.arange(len(begins))
    return np.asarray(np.maximum.accumulate(begins - places * prompt) + (places + 1) * prompt)
