"""`RecordedRollout`: what the log holds of one rollout, so that an engine can replay it."""

import contextlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.errors import RunNotFound, WeightsDamaged
from schemas.ids import group_of, requested_sample
from schemas.rollouts import Sampling, StopReason, WeightSpan
from schemas.weights import WeightsPublished
from slime_events.analysis.model.ancestry import Ancestor, Ancestry, open_ancestry
from slime_events.analysis.model.records import Run
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.trajectory import read_trajectory
from slime_events.core.turn_paths import TurnPaths
from storage.weights.store import WeightStore, local_folder, verify


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """prompt: int32 [prompt]; tokens: int32, log_probs: float32 [response]. spans: weight versions over the tokens; a
    tool's output is in no span. stop: None where it has not ended. in_turns: a generate function made it. weights: by
    version.
    """

    run: str
    sample: str
    prompt: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    spans: tuple[WeightSpan, ...]
    sampling: Sampling
    seed: int
    stop: StopReason | None
    in_turns: bool
    weights: dict[int, WeightsPublished]

    def ends(self, span: WeightSpan) -> bool:
        """Whether the rollout itself ended with this span, by a stop or by its length."""
        return self.stop is not None and not self.in_turns and span == self.spans[-1]


async def read_rollout(opened: OpenedRun, sample: str) -> RecordedRollout:
    """The rollout of a sample of the run or of its ancestors. Raises RunNotFound, BlobMissing."""
    try:
        requested = requested_sample(sample)
    except ValueError:
        raise RunNotFound(f"{sample!r} is no id of a sample: it ends in -s and a number (train-0-000003-s1)") from None
    async with open_ancestry(opened) as ancestry:
        part, run = await _origin(ancestry, requested)
        request = run.samples[requested].requests[-1].event
        if request.recalls:
            prompt = run.groups[group_of(sample)].prompt
            source = prompt.event.source.path if prompt is not None else "RUN"
            raise RunNotFound(
                f"sample {sample} of run {part.run} is rollout {request.recalls} of another run: its seed and weights "
                f"are there, so use `slime-events replay-rollout {source} {request.recalls}`"
            )
        if request.function:
            done = run.samples[requested].completed
            calls = done.event.calls if done is not None else ()
            theirs = f": replay its generations, {', '.join(calls)}" if calls else ", and not by engines"
            raise RunNotFound(f"sample {sample} of run {part.run} was made by {request.function}{theirs}")
        made = await read_trajectory(part.opened.log, sample, part.opened.fetch)
        if not made.spans:
            raise RunNotFound(f"sample {sample} of run {part.run} has no tokens that an engine made")
        return RecordedRollout(
            run=part.run,
            sample=sample,
            prompt=await TurnPaths(part.opened.log, part.opened.fetch).prompt(made.prompt, request.after),
            tokens=made.tokens,
            log_probs=made.log_probs,
            spans=made.spans,
            sampling=request.sampling,
            seed=request.seed,
            stop=made.stop,
            in_turns=bool(run.samples[requested].turns),
            weights=await _weights(ancestry, {span.version for span in made.spans}),
        )


async def _origin(ancestry: Ancestry, sample: str) -> tuple[Ancestor, Run]:
    """The run that has the rollout, and the records of it."""
    async for part in ancestry.all():
        run = await part.records(samples=[sample], groups=[group_of(sample)])
        if sample in run.samples and run.samples[sample].requests:
            return part, run
    raise RunNotFound(
        f"run {ancestry.own.run} has no rollout of sample {sample!r}: `slime-events query {ancestry.own.run} "
        '"SELECT sample FROM samples"` lists those there are'
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
    """The folder of a version, verified: as published, or in one of `folders` (of all versions, or of this one).

    Raises RunNotFound where it is nowhere, with how to get it, and WeightsDamaged.
    """
    published = rollout.weights.get(version)
    if published is None:
        raise RunNotFound(f"run {rollout.run} has published no weight version {version}")
    for folder in (published.url, *folders):
        local = local_folder(folder)
        if (local / "manifest.json").is_file():
            with contextlib.suppress(WeightsDamaged):
                verify(str(local), published.digest)
                return str(local)
        try:
            stored = WeightStore(folder).folder(version, published.digest)
        except WeightsDamaged:
            continue
        verify(stored, published.digest)
        return stored
    raise RunNotFound(
        f"weight version {version} of run {rollout.run} is neither at {published.url} nor in "
        f"{', '.join(folders) or 'any folder that was given'}. Make it again with `slime-events retrain {rollout.run} "
        f"--save-version {version} --out DIR`, then give --weights DIR"
    )
