"""Chunks: how many a rollout appends, what one costs by the times of a run, and what is said if a run does not tell."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.arrays import Array
from schemas.envelope import enclose
from schemas.errors import InvalidValue
from schemas.rollouts import RolloutProgressed
from slime_events.analysis.what_if.chunks import ChunkSize, ChunkTimes
from slime_events.analysis.what_if.engine_fit import FittedEngines, fit_engines
from slime_events.analysis.what_if.engine_speed import EngineSpeed
from slime_events.analysis.what_if.figures import figures_of
from slime_events.analysis.what_if.least_squares import fit, fit_with, range_of
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.prediction import Prediction
from slime_events.analysis.what_if.timed_rollouts import TimedRollout, timed_rollouts
from slime_events.analysis.what_if.virtual_run import simulate
from slime_events.analysis.what_if.what_if import predict
from storage.log import Recorded
from tests.what_if import worlds


@cache
def chunk_ends(length: int, chunk: int) -> tuple[int, ...]:
    """Return the token counts at which a rollout appends: message by message, as its engine sends them."""
    sent, new, ends = 0, 0, list[int]()
    for token in range(1, length):  # the last message ends the rollout
        if token == 1 or token - sent >= min(16, chunk):
            new, sent = new + token - sent, token
            if new >= chunk:
                ends.append(token)
                new = 0
    return tuple(ends)


@given(st.integers(1, 300), st.integers(1, 80))
def test_chunks_are_counted_as_message_by_message(length: int, chunk: int) -> None:
    assert ChunkSize(chunk, 5.0).count(length) == len(chunk_ends(length, chunk))


def chunk_at(times: ChunkTimes, sample: str, end: int, at: float) -> None:
    """Add a chunk that ends with this token."""
    start = max([0, *(tokens for tokens, _ in times.reached(sample))])
    event = RolloutProgressed(
        sample=sample,
        attempt=0,
        start=start,
        tokens=Array(dtype="int32", n=end - start),
        log_probs=Array(dtype="float32", n=end - start),
        spans=(),
        engine="engine-0",
    )
    envelope = enclose("run", event, at=round(at * 1e9), producer="engine-0")
    times.apply(Recorded(1, envelope.subject, envelope, b""))


def test_chunks_that_are_appended_by_time_do_not_count() -> None:
    times = ChunkTimes(4)
    for end in (5, 8, 12):
        chunk_at(times, "s", end, 1.0 * end)
    assert [tokens for tokens, _ in times.reached("s")] == [5, 12]
    assert [at for _, at in times.reached("s")] == pytest.approx([5.0, 12.0])


TRUE = {"per_prompt": 0.0, "per_token": 0.02, "per_running": 0.0005, "per_chunk": 0.002}


def token_by_token(
    chunk: int, steps: int = 10, rollouts: int = 12, noise: float = 0.0, lengths: Sequence[int] = range(10, 90)
) -> tuple[list[TimedRollout], ChunkTimes]:
    """Return rollouts of an engine that computes a token of each, then appends what is due. noise: spread of a step."""
    chance, times, made, now = random.Random(1), ChunkTimes(chunk), list[TimedRollout](), 100.0
    for step in range(steps):
        slower = 1 + noise * chance.uniform(-1, 1)
        left = {f"{step}-{number}": chance.choice(lengths) for number in range(rollouts)}
        begin, token = now, 0
        while left:
            token += 1
            now += slower * (TRUE["per_token"] + TRUE["per_running"] * len(left))
            for sample, length in list(left.items()):
                if token in chunk_ends(length, chunk):
                    chunk_at(times, sample, token, now)
            ended = [sample for sample, length in left.items() if length == token]
            for sample in ended:
                made.append(TimedRollout(sample, "engine-0", step, begin, begin, now, left.pop(sample), 0.0))
            now += slower * TRUE["per_chunk"] * sum(token in chunk_ends(length, chunk) for length in left.values())
        now += 1.0
    return sorted(made, key=lambda rollout: rollout.begin), times


def fitted(chunk: int, **fields: object) -> FittedEngines:
    rollouts, times = token_by_token(chunk, **fields)  # type: ignore[arg-type]
    return fit_engines(rollouts, times, {}, ())


@pytest.mark.parametrize("chunk", [4, 8, 20])
def test_the_time_of_a_chunk_is_found(chunk: int) -> None:
    engines = fitted(chunk)
    assert engines.best.per_chunk == pytest.approx(TRUE["per_chunk"], rel=0.1)
    assert engines.best.per_token == pytest.approx(TRUE["per_token"], rel=0.1)
    assert engines.best.per_running == pytest.approx(TRUE["per_running"], rel=0.1)
    assert engines.best.most_per_chunk < 1.5 * TRUE["per_chunk"]
    assert engines.best.least_per_chunk > 0.5 * TRUE["per_chunk"]


def test_on_a_busy_machine_the_range_is_wider_and_has_the_true_time() -> None:
    quiet, busy = fitted(4).best, fitted(4, noise=0.5).best
    assert busy.least_per_chunk <= TRUE["per_chunk"] <= busy.most_per_chunk
    assert busy.most_per_chunk - busy.least_per_chunk > 2 * (quiet.most_per_chunk - quiet.least_per_chunk)
    assert busy.least_per_chunk <= busy.per_chunk <= busy.most_per_chunk


def test_equal_rollouts_do_not_tell_chunks_from_tokens() -> None:
    """Each of their parts but the first has one token and one chunk. The other coefficients make up for its time."""
    engines = fitted(1, lengths=(40,), noise=0.3)
    best, least, most = engines
    assert (least.per_chunk, most.per_chunk) == (best.least_per_chunk, best.most_per_chunk)
    assert best.least_per_chunk <= TRUE["per_chunk"] <= best.most_per_chunk
    assert best.most_per_chunk - best.least_per_chunk > 0.5 * TRUE["per_chunk"]
    assert least.per_token + 12 * least.per_running > most.per_token + 12 * most.per_running


def test_without_a_time_of_tokens_no_time_of_a_chunk_is_trusted() -> None:
    """Rollouts of one length run together, so the fit leaves one of the times per token out: chunks may have it."""
    best, least, most = fitted(4, lengths=(40,), noise=0.3)
    assert (best.per_chunk, least.per_chunk) == (0.0, 0.0)
    assert TRUE["per_chunk"] < most.per_chunk < 1.5 * TRUE["per_chunk"]
    assert best.per_token + 12 * best.per_running > TRUE["per_token"] + 12 * TRUE["per_running"]


def test_a_coefficient_that_another_column_explains_can_be_anything() -> None:
    rising = np.arange(1.0, 11.0)
    columns, values = np.stack([rising, 2 * rising], axis=1), 3 * rising
    assert range_of(1, columns, values, np.arange(10), fit(columns, values)) == pytest.approx((0.0, 1.5))
    assert fit_with(1, 1.0, columns, values).coefficients == pytest.approx((1.0, 1.0))


def test_a_range_has_the_true_coefficient_if_errors_are_common_to_a_group() -> None:
    """19 of 20 ranges of two standard errors; with errors that are taken as independent there would be far fewer."""
    draw, inside, groups = np.random.default_rng(0), 0, np.repeat(np.arange(20), 30)
    for _ in range(100):
        columns = np.stack([np.ones(600), draw.random(20)[groups] + 0.1 * draw.random(600)], axis=1)
        values = columns @ [1.0, 2.0] + draw.normal(0, 0.5, 20)[groups]
        least, most = range_of(1, columns, values, groups, fit(columns, values))
        inside += least <= 2.0 <= most
    assert inside >= 85


def seconds_of(engines: EngineSpeed, chunk: int, seconds: float = 5.0, length: int = 10) -> float:
    """Return the step time of two rollouts of this length [tokens] and a training of 1 s."""
    settings = worlds.settings()
    settings = replace(settings, engine=replace(settings.engine, chunk_seconds=seconds))
    measured = worlds.measurements({0: [worlds.group(length)]}, settings, engines=engines)
    run = simulate(measured, replace(Policy.of(settings), chunk_tokens=chunk), 0).run
    return figures_of(run, 1, 1).step_seconds


def test_chunks_delay_all_rollouts_of_their_engine() -> None:
    """10 tokens of 0.1 s; both rollouts append after 5 and 9 tokens: 4 chunks of 0.5 s, and the step of 1 s."""
    engines = worlds.speed(per_chunk=0.5)
    assert seconds_of(engines, 64) == pytest.approx(2.0)
    assert seconds_of(engines, 4) == pytest.approx(2.0 + 4 * 0.5)


def test_slow_chunks_are_appended_by_time() -> None:
    """40 tokens of 0.1 s in messages of 16: after 5 s none is due, after 1 s both append with tokens 17 and 33."""
    engines = worlds.speed(per_chunk=0.5)
    assert seconds_of(engines, 64, length=40) == pytest.approx(5.0)
    assert seconds_of(engines, 64, seconds=1.0, length=40) == pytest.approx(5.0 + 4 * 0.5)


def predicted(chunks: Sequence[int], *, appended: bool) -> tuple[tuple[Prediction, ...], tuple[str, ...]]:
    """Predict a run of rollouts of 20 to 100 tokens. appended: it has chunks, evenly over the time of a rollout."""
    of, chance = worlds.settings(rollout_batch_size=4), random.Random(0)
    of = replace(of, engine=replace(of.engine, chunk_tokens=16))
    pool = [worlds.group(chance.randint(20, 100)) for _ in range(32)]
    measured = worlds.measurements({0: pool}, of, engines=worlds.speed(per_token=0.01, per_running=0.002))
    run, times = simulate(measured, Policy.of(of), 0).run, ChunkTimes(16)
    for rollout in timed_rollouts(run) if appended else ():
        for end in chunk_ends(rollout.tokens, 16):
            share = end / rollout.tokens
            chunk_at(times, rollout.sample, end, rollout.begin + share * (rollout.end - rollout.begin))
    view = predict(run, of, {"chunk_tokens": chunks}, chunks=times)
    return view.predictions, view.unknown


def test_a_prediction_of_other_chunks_has_a_range_of_step_times() -> None:
    predictions, unknown = predicted([4, 16, 64], appended=True)
    assert [prediction.changed for prediction in predictions] == [{"chunk_tokens": 4}, {"chunk_tokens": 64}]
    for prediction in predictions:
        assert prediction.step_seconds_range is not None
        least, most = prediction.step_seconds_range
        assert least <= prediction.figures.step_seconds <= most
        assert prediction.beyond
    assert any("ms for each chunk" in sentence for sentence in unknown)
    assert not any("ms for each chunk" in sentence for sentence in predicted([16], appended=True)[1])


def test_without_chunks_larger_ones_change_nothing_and_smaller_ones_are_refused() -> None:
    (prediction,), _ = predicted([64], appended=False)
    assert prediction.step_seconds_range == (prediction.figures.step_seconds,) * 2
    with pytest.raises(InvalidValue):
        predicted([8], appended=False)
