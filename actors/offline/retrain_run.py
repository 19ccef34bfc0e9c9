"""`retrain`: train recorded steps of a run again from its log, and compare the results.

same topology     every digest must equal the committed digest; if the weights differ, their distance is reported
another topology  the distance of the weights from the recorded weights is reported: from their files or, if these are
                  gone, from weights retrained on the run's own topology, whose digests must equal those of the log
"""

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from msgspec.structs import replace

from actors.offline.retrainer import (
    Judge,
    MakeRanks,
    begin,
    distance_from_recorded,
    past_versions,
    retrain_steps,
    run_steps,
    same_digests,
    weights_folder,
)
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.local_ranks import local_ranks
from actors.trainer.ranks import Ranks
from schemas.doc import doc
from schemas.errors import ImpossibleCombination, TrainerError
from schemas.trainers import Fidelity
from slime_events.analysis.retrain.report import Report, is_changed, likely_causes
from slime_events.analysis.retrain.settings import is_same, topology_text, with_topology
from slime_events.analysis.retrain.version_chain import Chain, read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.training.difference import Retrained
from storage.weights.store import WeightStore

SAME = "rewards, batch, weights and optimizer digest of each step with those in the log"


@dataclass(frozen=True, slots=True)
class Save:
    """A version to save."""

    version: int
    out: Annotated[str, doc("Folder for the weights, in the layout of a run.")]
    checkpoint: Annotated[bool, doc("Save the trainer's state too.")] = False


@dataclass(frozen=True, slots=True)
class RetrainRequest:
    """Steps to retrain, and the topology to use."""

    steps: Annotated[str | None, doc("Steps, as `Chain.chosen` parses them; None is all.")] = None
    from_base: Annotated[bool, doc("Start from the run's beginning, not from a checkpoint.")] = False
    tensor: Annotated[int | None, doc("Tensor parallel ranks of another topology.")] = None
    ranks: Annotated[int | None, doc("Ranks of another topology.")] = None
    context: Annotated[int | None, doc("Context parallel ranks of another topology.")] = None
    save: Save | None = None


async def retrain(
    opened: OpenedRun,
    request: RetrainRequest,
    on_step: Callable[[Retrained], None] = lambda step: None,
    *,
    environment: Mapping[str, str] | None = None,
    make_ranks: MakeRanks = local_ranks,
    begun: float | None = None,
) -> Report:
    """Retrain the requested steps, from the nearest checkpoint or from the run's beginning.

    environment: versions of the software here. begun: `time.perf_counter` at the begin of the work, by default now.
    Retraining ends at the first step that contradicts the log or, before a version to save, at the first step that
    differs. Raises RunNotFound, InvalidValue for steps that do not exist, TrainerError if the base checkpoint has
    changed, StorageError.
    """
    begun = time.perf_counter() if begun is None else begun
    chain = await read_chain(opened.log)
    settings = with_topology(opened.settings, request.tensor, request.ranks, request.context)
    exact, steps = is_same(settings, opened.settings), _steps(chain, request)
    save, base = request.save, request.from_base
    if save is not None and not exact:
        raise ImpossibleCombination("--save-version needs the run's own topology: leave out the flags that change it")
    trained, saved = list[Retrained](), tuple[str, ...]()

    def judged(step: Retrained) -> None:
        trained.append(step)
        on_step(step)

    judging: AbstractAsyncContextManager[tuple[Judge, str]] = nullcontext(
        (partial(same_digests, folder_of=partial(weights_folder, opened, chain)), SAME)
    )
    if not exact:
        judging = _by_distance(opened, chain, steps, base, make_ranks)
    async with judging as (judge, compared), make_ranks(settings) as ranks, past_versions(opened, chain) as past:
        building = time.perf_counter() - begun
        first = await begin(opened, chain, ranks, newest=steps.start, past=past, from_base=base, exact=exact)
        middle = first if save is None else save.version
        ended = await retrain_steps(ranks, judge, run_steps(opened, chain, range(first, middle)), judged, past=past)
        if ended is None and save is not None:
            saved = await _save(ranks, settings, save)
        if ended is None:
            rest = run_steps(opened, chain, range(middle, steps.stop))
            await retrain_steps(ranks, judge, rest, judged, ends=is_changed, past=past)
    report = Report(
        run=opened.run,
        origin=_origin(first, chain),
        compared=compared,
        topology=topology_text(settings),
        exact=exact,
        steps=tuple(trained),
        seconds=time.perf_counter() - begun,
        building=building,
        run_seconds=chain.seconds(range(first, steps.stop)),
        saved=saved,
    )
    return _with_causes(report, chain, first, environment or {})


def _with_causes(report: Report, chain: Chain, first: int, environment: Mapping[str, str]) -> Report:
    if (wrong := report.wrong) is None:
        return report
    approximate = [event.version for event in chain.trained.restored if event.optimizer is Fidelity.APPROXIMATE]
    restored = max((version for version in approximate if first <= version <= wrong.step), default=None)
    return replace(report, causes=likely_causes(wrong, chain.started, environment, restored=restored))


@asynccontextmanager
async def _by_distance(
    opened: OpenedRun, chain: Chain, steps: range, from_base: bool, make_ranks: MakeRanks
) -> AsyncIterator[tuple[Judge, str]]:
    """Open the judge of steps on another topology, with a text that says what is compared."""
    written = partial(weights_folder, opened, chain)
    if all(written(step + 1) for step in steps):
        yield (
            partial(distance_from_recorded, written),
            "the weights after each step with the files that the run has written",
        )
        return
    with tempfile.TemporaryDirectory(prefix="slime-events-retrain-") as folder:
        store = WeightStore(folder, durable=False)
        async with make_ranks(opened.settings) as ranks, past_versions(opened, chain) as past:
            first = await begin(opened, chain, ranks, newest=steps.start, past=past, from_base=from_base)
            own = run_steps(opened, chain, range(first, steps.stop))
            if wrong := await retrain_steps(ranks, partial(same_digests, keep=store), own, past=past):
                raise TrainerError(
                    f"step {wrong.step} differs from the committed step even on the run's own topology: "
                    f"{', '.join(map(str, wrong.differences))}"
                )
        yield (
            partial(distance_from_recorded, store.folder),
            f"the weights after each step with weights retrained on the run's own topology "
            f"({topology_text(opened.settings)}), whose digests equal those of the log: the run's own files are gone",
        )


async def _save(ranks: Ranks, settings: TrainSettings, save: Save) -> tuple[str, ...]:
    """Save the ranks' version; return the folders."""
    store = WeightStore(save.out, base=settings.trainer.hf_checkpoint)
    manifest = await ranks.write_weights(store, save.version, save.version - 1 if save.version else None)
    folder = store.folder(save.version, manifest.digest)
    if not save.checkpoint:
        return (folder,)
    checkpoint = CheckpointFolders(f"{save.out}/checkpoints").of(save.version)
    await ranks.save_checkpoint(checkpoint)
    return folder, checkpoint


def _steps(chain: Chain, request: RetrainRequest) -> range:
    """Return the steps to compare; none if only a version to save is requested."""
    if request.save is None:
        return chain.parse_steps(request.steps)
    version = request.save.version
    chain.check(version)
    if request.steps is None:
        return range(version, version)
    steps = chain.parse_steps(request.steps)
    if not steps.start <= version <= steps.stop:
        raise ImpossibleCombination(
            f"--save-version {version} is not one of the versions {steps.start} to {steps.stop} of --steps "
            f"{request.steps}"
        )
    return steps


def _origin(first: int, chain: Chain) -> str:
    if first in chain.trained.saved:
        return f"the checkpoint of version {first}"
    return f"version {first}, from which the run branched" if first else "the base checkpoint"
