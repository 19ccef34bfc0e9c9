"""Sentences about what a prediction cannot know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slime_events.analysis.what_if.chunks import ChunkSize
from slime_events.analysis.what_if.engine_fit import LEAST_OVERLAP
from slime_events.analysis.what_if.figures import Figures
from slime_events.analysis.what_if.measurements import Measurements
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.virtual_run import Simulated
from slime_events.core.config.engine import MESSAGE_TOKENS

MORE = 1.1
"""Beyond this factor of what was seen, a model is extrapolated."""
UNLIKE = 0.1
"""Relative error of the step time under the run's own settings from which the models do not fit."""


def unknowns(
    measured: Measurements, seen: Figures, own: Figures, unfinished: int, chosen: Sequence[Policy]
) -> list[str]:
    """Return what no prediction of these policies can know. unfinished: groups that had not ended."""
    chunk = measured.settings.engine.chunk
    of_chunks = _of_chunks(measured, chunk) if any(policy.chunk_tokens != chunk for policy in chosen) else ()
    return [*_unknowns(measured, seen, own, unfinished), *of_chunks]


def _of_chunks(measured: Measurements, chunk: int) -> Iterator[str]:
    engines = measured.engines
    if not engines.chunks:
        yield f"The run appended no chunk of {chunk:,} tokens or more, so larger chunks change nothing."
        return
    least, most = 1000 * engines.least_per_chunk, 1000 * engines.most_per_chunk
    shown = "" if least else "The run does not show that a chunk takes time. "
    yield (
        f"{shown}The times of its rollouts allow {least:.3g} to {most:.3g} ms for each chunk, which gives the range of "
        "step times behind a prediction of other chunks."
    )


def _unknowns(measured: Measurements, seen: Figures, own: Figures, unfinished: int) -> Iterator[str]:
    settings, engines = measured.settings, measured.engines
    yield (
        "Other staleness, order or batches give other weights, and other weights give other lengths and rewards. The "
        "predictions use the answers that were recorded after as many steps, or about as many."
    )
    if engines.overlap < LEAST_OVERLAP:
        yield (
            f"Engines and trainer slow each other down if they share GPUs or a machine. In this run both worked in "
            f"only {engines.overlap:.1%} of the rollouts' time, so a policy under which they overlap may be slower "
            "than predicted."
        )
    else:
        yield (
            "Engines and trainer slow each other down if they share GPUs or a machine. This is fitted from the "
            f"{engines.overlap:.0%} of the rollouts' time in which both worked."
        )
    yield "Each engine and each grader is assumed to be as fast as those of the run, however many there are."
    if not measured.graders.is_known:
        graders = measured.graders
        yield (
            f"{graders.processes} grader processes made at most {graders.busiest:.1f} gradings at once, so they were "
            "never all busy: a process is assumed to make one at a time."
        )
    off = own.step_seconds / seen.step_seconds - 1.0
    if abs(off) > UNLIKE:
        yield (
            f"Under the run's own settings the predicted step takes {off:+.0%} of the time that was seen: compare "
            "predictions with each other rather than with the run."
        )
    if unfinished:
        yield f"{unfinished:,} groups had not ended. Their answers are left out, and they may be the longest."
    if settings.reward.custom_reward_post_process_path:
        yield "Your post-processing of rewards is not called: rewards are normalised as without it."
    if measured.evaluations and settings.evaluation.eval_on == "version":
        yield "Evaluations are made by the newest weights: engines are not held at the version under evaluation."


def beyond(simulated: Simulated, measured: Measurements, policy: Policy, base: Policy) -> tuple[str, ...]:
    """Return what the run has not shown, but the prediction of this policy depends on."""
    sentences, engines, trainer = list[str](), measured.engines, measured.trainer
    if simulated.most_running > MORE * engines.most_running:
        sentences.append(
            f"{simulated.most_running:,} rollouts at once on an engine; {engines.most_running:,} were seen"
        )
    fewest, most = simulated.step_tokens
    if most > MORE * trainer.most_tokens or fewest * MORE < trainer.fewest_tokens:
        sentences.append(
            f"steps of {fewest:,} to {most:,} tokens; {trainer.fewest_tokens:,} to {trainer.most_tokens:,} were seen"
        )
    if policy.rollout_num_engines != base.rollout_num_engines:
        sentences.append(f"{policy.rollout_num_engines} engines; {base.rollout_num_engines} were seen")
    if policy.rm_workers != base.rm_workers and measured.graders.busiest:
        sentences.append(f"{policy.rm_workers} grader processes; {base.rm_workers} were seen")
    sentences += _beyond_chunks(simulated, measured, policy.chunk_tokens, base.chunk_tokens)
    if simulated.repeated > UNLIKE:
        sentences.append(f"{simulated.repeated:.0%} of the groups get answers of another group, drawn at random")
    return tuple(sentences)


def _beyond_chunks(simulated: Simulated, measured: Measurements, chunk: int, seen: int) -> Iterator[str]:
    """Yield what the run has not shown of chunks of this many tokens. seen: tokens of the run's chunks."""
    if chunk == seen or not measured.engines.chunks:
        return
    yield f"chunks of {chunk:,} tokens; {seen:,} were seen"
    if min(chunk, seen) < MESSAGE_TOKENS < max(chunk, seen):
        yield (
            f"an engine's messages have as many tokens as a chunk, but at most {MESSAGE_TOKENS}, and the time of a "
            "chunk has that of its messages"
        )
    size = ChunkSize(chunk, measured.settings.engine.chunk_s)
    token = measured.engines.seconds_per_token(simulated.most_running, training=False)
    if size.by_time(token):
        yield (
            f"{chunk:,} tokens take longer than --chunk-seconds {size.seconds:g} if {simulated.most_running:,} "
            "rollouts run, so chunks are appended earlier"
        )
