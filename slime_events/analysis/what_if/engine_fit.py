"""`fit_engines`: the speed of engines from the recorded rollouts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.analysis.what_if.engine_speed import EngineSpeed
from slime_events.analysis.what_if.intervals import Interval, Load, Seconds
from slime_events.analysis.what_if.least_squares import WIDTH, Fitted, fit, fit_with, range_of
from slime_events.analysis.what_if.timed_rollouts import TimedRollout

FEWEST = 20
"""Fewest rollouts for a fit."""
TRIED = (0.0, *(1e-5 * 1.25**power for power in range(60)))
"""Times of a prompt that are tried [s], up to 5 s: this time says how long prompts wait for each other."""
LEAST_OVERLAP = 0.05
"""Least share of the rollouts' time with training at the same time from which its effect is fitted."""
TINY = 1e-9
"""Seconds that keep a ratio finite."""
COLUMNS = ("per_rollout", "per_token", "per_running", "per_training", "per_chunk")
CHUNK = COLUMNS.index("per_chunk")
PER_TOKEN = COLUMNS.index("per_token"), COLUMNS.index("per_running")


class FittedEngines(NamedTuple):
    """The speed that fits best, and those with the least and the most time of a chunk that the rollouts allow."""

    best: EngineSpeed
    least: Annotated[EngineSpeed, doc("the other coefficients are those that fit best with that time")]
    most: EngineSpeed


def fit_engines(
    rollouts: Sequence[TimedRollout],
    chunks: ChunkTimes,
    pauses: dict[str, list[Interval]],
    training: Sequence[Interval],
) -> FittedEngines:
    """Return the speed that fits these rollouts.

    Each part of a rollout between two of its chunks is a row. Without chunks, a rollout is a row. pauses: of each
    engine, while it loads weights. training: times of the trainer's steps.

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
    seen = [_Seen(members, chunks, Load(pauses.get(engine, ())), trained) for engine, members in by_engine.items()]
    overlap = sum(float(part.overlap.sum()) for part in seen) / sum(float(part.length.sum()) for part in seen)
    fitting = _Fitting(seen, with_training=overlap >= LEAST_OVERLAP)
    appended = sum(part.chunks for part in seen)
    chunk = least = most = 0.0
    if appended:
        even = fitting.evened()
        chunk = even.best()[0].coefficients[CHUNK]
        least, most = even.range_of_chunk()
    best, prompt = fitting.best(chunk)
    if chunk and not all(best.coefficients[column] for column in PER_TOKEN):
        # Chunks may have the time of tokens, and standard errors mean nothing: a fit without a time of chunks is safer.
        chunk = least = 0.0
        best, prompt = fitting.best(chunk)

    def speed(fitted: Fitted, prompt: float) -> EngineSpeed:
        return EngineSpeed(
            **dict(zip(COLUMNS, fitted.coefficients, strict=True)),
            per_prompt=prompt,
            least_per_chunk=least,
            most_per_chunk=most,
            error=fitting.error(fitted, prompt),
            rollouts=len(rollouts),
            chunks=appended,
            most_running=max(part.most_running for part in seen),
            overlap=overlap,
        )

    bounds = [fitting.best(value) if value != chunk else (best, prompt) for value in (least, most)]
    return FittedEngines(speed(best, prompt), *(speed(*bound) for bound in bounds))


class _Seen:
    """The rollouts of one engine, in the order of their begin, and their parts."""

    def __init__(self, rollouts: Sequence[TimedRollout], chunks: ChunkTimes, pauses: Load, trained: Load) -> None:
        self._begins = np.array([rollout.begin for rollout in rollouts])
        self._ends = np.array([rollout.end for rollout in rollouts])
        parts = [part for place, rollout in enumerate(rollouts) for part in chunks.parts(rollout, place)]
        self._first = np.array([part.is_first for part in parts], np.float64)
        self._tokens = np.array([part.tokens for part in parts], np.float64)
        self._from = np.array([part.begin for part in parts])
        self._to = np.array([part.end for part in parts])
        self.rollout = np.array([part.rollout for part in parts])
        self.versions = np.array([rollout.version for rollout in rollouts])[self.rollout]
        self.length = np.maximum(self._to - self._from, 1e-9)
        tools = np.array([rollout.tools for rollout in rollouts])[self.rollout]  # only rollouts of one part have tools
        self.seconds = np.maximum(0.0, self.length - tools - pauses.busy(self._from, self._to))
        self.overlap = trained.busy(self._from, self._to)
        self.most_running = Load(zip(self._begins, self._ends, strict=True)).most
        appended = np.sort([at for rollout in rollouts for _, at in chunks.reached(rollout.sample)])
        self.chunks = len(appended)
        self._appended = (np.searchsorted(appended, self._to) - np.searchsorted(appended, self._from)).astype(float)

    def rows(self, prompt: float, *, with_training: bool) -> tuple[Seconds, Seconds]:
        """Return the time in prompts of each part [s, parts], and what the rest depends on [parts, columns].

        prompt: time of a prompt [s]. The engine computes the prompt of a rollout, those that are not computed yet when
        it begins, and those that begin before its end; then it generates no tokens.
        """
        free = _free_at(self._begins, prompt)
        is_first = self._first > 0
        own = np.where(is_first, free[self.rollout] - self._from, 0.0)
        before = np.where(is_first, self.rollout + 1, np.searchsorted(self._begins, self._from))
        computing = own + prompt * (np.searchsorted(self._begins, self._to) - before)
        decoding = np.minimum(free, self._ends)
        since = np.minimum(np.maximum(self._from, decoding[self.rollout]), self._to)
        load = Load(zip(decoding, self._ends, strict=True))
        running = load.covered(since, self._to) / np.maximum(self._to - since, 1e-9)
        training = self._tokens * self.overlap / self.length * with_training
        columns = [self._first, self._tokens, self._tokens * running, training, self._appended]
        return np.asarray(computing), np.stack(columns, axis=1)


def _free_at(begins: Seconds, prompt: float) -> Seconds:
    """Return when the prompt of each rollout and all before it are computed, one after the other."""
    places = np.arange(len(begins))
    return np.asarray(np.maximum.accumulate(begins - places * prompt) + (places + 1) * prompt)


class _Fitting:
    """Fits the parts of all engines together. slowness [parts]: each part's time is divided by it."""

    def __init__(self, seen: Sequence[_Seen], *, with_training: bool, slowness: Seconds | float = 1.0) -> None:
        self._seen, self._with_training = seen, with_training
        self._versions = np.unique(np.concatenate([part.versions for part in seen]), return_inverse=True)[1]
        self._seconds = np.concatenate([part.seconds for part in seen]) / slowness

    def evened(self) -> _Fitting:
        """Return a fit of the same parts as if the machine were as busy under all weight versions.

        What makes all rollouts of a version slower than the best fit, such as other programs, says nothing about
        chunks, but would be taken for their time or against it. The mean slowness is 1.
        """
        fitted, prompt = self.best()
        columns, left = self._rows(prompt)
        expected = np.maximum(0.0, self._seconds - left) + columns @ np.array(fitted.coefficients)
        slowness = np.bincount(self._versions, self._seconds) / np.bincount(self._versions, np.maximum(expected, TINY))
        slowness = slowness[self._versions] * (expected.sum() / (slowness[self._versions] @ expected))
        return _Fitting(self._seen, with_training=self._with_training, slowness=np.maximum(slowness, TINY))

    def best(self, per_chunk: float | None = None) -> tuple[Fitted, float]:
        """Return the best fit and its time of a prompt [s]. per_chunk: time of a chunk [s]; None: the best."""
        return min(self._fits(per_chunk), key=lambda pair: pair[0].squares)

    def range_of_chunk(self) -> tuple[float, float]:
        """Return the least and the most time of a chunk [s], over all times of a prompt that fit nearly as well.

        Rows of one version may have common errors, so there are as many independent errors as versions. A fit whose
        squares are within `exp(WIDTH ** 2 / versions)` of the best is within two standard errors of it.
        """
        fits = list(self._fits())
        enough = min(fitted.squares for fitted, _ in fits) * np.exp(WIDTH**2 / (1 + self._versions.max()))
        ranges = [
            range_of(CHUNK, *self._rows(tried), self._versions, fitted)
            for fitted, tried in fits
            if fitted.squares <= enough
        ]
        return min(least for least, _ in ranges), max(most for _, most in ranges)

    def _fits(self, per_chunk: float | None = None) -> Iterator[tuple[Fitted, float]]:
        for tried in TRIED:
            columns, left = self._rows(tried)
            yield fit(columns, left) if per_chunk is None else fit_with(CHUNK, per_chunk, columns, left), tried

    def error(self, fitted: Fitted, prompt: float) -> float:
        """Return the mean absolute error of a rollout, as a share of the mean time of a rollout."""
        columns, left = self._rows(prompt)
        errors = left - columns @ np.array(fitted.coefficients)
        wrong = seconds = 0.0
        for engine in self._seen:
            own, errors = errors[: len(engine.rollout)], errors[len(engine.rollout) :]
            wrong += float(np.abs(np.bincount(engine.rollout, own)).sum())
            seconds += float(engine.length.sum())
        return wrong / seconds

    def _rows(self, prompt: float) -> tuple[Seconds, Seconds]:
        """Return what the rest of each part's time depends on [parts, columns], and that rest [s, parts]."""
        rows = [engine.rows(prompt, with_training=self._with_training) for engine in self._seen]
        computing = np.concatenate([seconds for seconds, _ in rows])
        return np.concatenate([columns for _, columns in rows]), self._seconds - computing
