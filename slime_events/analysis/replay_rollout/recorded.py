"""`RecordedRollout`: a rollout as the log has it, in a form that an engine can replay."""

import contextlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.errors import RunNotFound, WeightsDamaged
from schemas.ids import group_of, requested_sample
from schemas.rollouts import Maker, Sampling, StopReason, WeightSpan
from schemas.weights import WeightsPublished
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.sessions.turn_paths import TurnPaths
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.model.ancestry import Ancestor, Ancestry, open_ancestry
from slime_events.model.records import Run
from storage.folders.places import is_remote, local_path
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from storage.weights.whole_copies import whole_folder


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout as the log has it."""

    run: Annotated[str, doc("run that has the rollout")]
    sample: Annotated[str, doc("id of the sample")]
    prompt: Annotated[npt.NDArray[np.int32], doc("token ids [prompt]")]
    tokens: Annotated[npt.NDArray[np.int32], doc("token ids [response]")]
    log_probs: Annotated[npt.NDArray[np.float32], doc("log-probs by the engine [response], nats")]
    spans: Annotated[tuple[WeightSpan, ...], doc("weight versions over the response; a tool's output is in no span")]
    sampling: Annotated[Sampling, doc("sampling parameters")]
    seed: Annotated[int, doc("sampling seed")]
    stop: Annotated[StopReason | None, doc("how it ended; None if it has not")]
    in_turns: Annotated[bool, doc("whether a generate function made it in turns")]
    weights: Annotated[dict[int, WeightsPublished], doc("published weights by version")]

    def ends(self, span: WeightSpan) -> bool:
        """Return whether the rollout itself ended with this span, by a stop or by its length."""
        return self.stop is not None and not self.in_turns and span == self.spans[-1]


async def read_rollout(opened: OpenedRun, sample: str) -> RecordedRollout:
    """Return the rollout of a sample of the run or its ancestors. Raises RunNotFound, BlobMissing."""
    try:
        requested = requested_sample(sample)
    except ValueError:
        raise RunNotFound(
            f"{sample!r} is not the id of a sample. Such an id ends in -s and a number: train-0-000003-s1"
        ) from None
    async with open_ancestry(opened) as ancestry:
        part, run = await _origin(ancestry, requested)
        request = run.samples[requested].requests[-1].event
        if request.maker is Maker.RECORDED:
            prompt = run.groups[group_of(sample)].prompt
            source = prompt.event.source.path if prompt is not None else "RUN"
            raise RunNotFound(
                f"sample {sample} of run {part.run} is rollout {request.recalls} of another run, which has its "
                f"seed and weights. Run `slime-events replay-rollout {source} {request.recalls}`"
            )
        if request.maker is Maker.OUTSIDE:
            raise RunNotFound(f"sample {sample} of run {part.run} was made by a producer, not by an engine of this run")
        if request.maker is Maker.FUNCTION:
            done = run.samples[requested].completed
            calls = done.event.calls if done is not None else ()
            hint = f". Replay its generations: {', '.join(calls)}" if calls else ", not by engines"
            raise RunNotFound(f"sample {sample} of run {part.run} was made by {request.function}{hint}")
        trajectory = await read_trajectory(part.opened.log, sample, part.opened.fetch)
        if not trajectory.spans:
            raise RunNotFound(f"sample {sample} of run {part.run} has no tokens of an engine")
        return RecordedRollout(
            run=part.run,
            sample=sample,
            prompt=await TurnPaths(part.opened.log, part.opened.fetch).prompt(trajectory.prompt, request.after),
            tokens=trajectory.tokens,
            log_probs=trajectory.log_probs,
            spans=trajectory.spans,
            sampling=request.sampling,
            seed=request.seed,
            stop=trajectory.stop,
            in_turns=bool(run.samples[requested].turns),
            weights=await _weights(ancestry, {span.version for span in trajectory.spans}),
        )


async def _origin(ancestry: Ancestry, sample: str) -> tuple[Ancestor, Run]:
    """Return the run that has the rollout, and its records."""
    async for part in ancestry.all():
        run = await part.records(samples=[sample], groups=[group_of(sample)])
        if sample in run.samples and run.samples[sample].requests:
            return part, run
    raise RunNotFound(
        f"run {ancestry.own.run} has no rollout of sample {sample!r}. To list its samples, run "
        f'`slime-events query {ancestry.own.run} "SELECT sample FROM samples"`'
    )


async def _weights(ancestry: Ancestry, versions: set[int]) -> dict[int, WeightsPublished]:
    weights: dict[int, WeightsPublished] = {}
    async for part in ancestry.all():
        run = await part.records(versions=sorted(versions - weights.keys()))
        weights |= {version: record.published.event for version, record in run.versions.items() if record.published}
        if len(weights) == len(versions):
            break
    return weights


def weight_folder(rollout: RecordedRollout, version: int, folders: list[str]) -> str:
    """Return the path or URL of a version, verified: the published path, or one in `folders` (of all versions, or a
    path of this one).

    Raises RunNotFound, with how to make the weights, if there is no such folder; WeightsDamaged.
    """
    published = rollout.weights.get(version)
    if published is None:
        raise RunNotFound(f"run {rollout.run} has not published weight version {version}")
    own = () if is_remote(published.url) else (published.url,)  # the caller names the URLs that it trusts
    for folder in (*own, *folders):
        local = None if is_remote(folder) else local_path(folder)
        if local is not None and (local / "manifest.json").is_file():
            with contextlib.suppress(WeightsDamaged):
                verify(str(local), published.digest)
                return whole_folder(str(local))
        try:
            stored = WeightStore(folder).folder(version, published.digest)
        except WeightsDamaged:
            continue
        verify(stored, published.digest)
        return whole_folder(stored)
    raise RunNotFound(
        f"weight version {version} of run {rollout.run} is neither at {published.url} nor in "
        f"{', '.join(folders) or 'any --weights folder'}. Make it with `slime-events retrain {rollout.run} "
        f"--save-version {version} --out DIR`, then give --weights DIR"
    )
