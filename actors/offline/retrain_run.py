"""`retrain`: steps of a run trained again from its log, and compared.

same topology     every digest as it was committed, bit for bit; where one is not, how far the weights are
another topology  how far the weights are from the recorded ones: from their files, or, where those are gone, from
                  a training on the run's own topology just before, whose digests are all those of the log
"""

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from actors.offline.retrainer import (
    Judge,
    MakeRanks,
    begin,
    far_from,
    past_versions,
    retrain_steps,
    run_steps,
    same_digests,
    weights_folder,
)
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.local_ranks import local_ranks
from actors.trainer.ranks import Ranks
from schemas.errors import ImpossibleCombination, TrainerError
from schemas.trainers import Fidelity
from slime_events.analysis.retrain.difference import Retrained
from slime_events.analysis.retrain.report import Report, is_changed, likely_causes
from slime_events.analysis.retrain.settings import is_same, topology_text, with_topology
from slime_events.analysis.retrain.version_chain import Chain, read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from storage.weights.store import WeightStore

SAME = "rewards, batch, weights and optimizer digest of each step with those in the log"


@dataclass(frozen=True, slots=True)
class Save:
    """Weights of a version into the folder `out`, as a run keeps them; with `checkpoint` the trainer's state too."""

    version: int
    out: str
    checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """steps: as `Chain.chosen` reads them. from_base: pass checkpoints over. tensor, ranks: another topology."""

    steps: str | None = None
    from_base: bool = False
    tensor: int | None = None
    ranks: int | None = None
    save: Save | None = None


async def retrain(
    opened: OpenedRun,
    wanted: Wanted,
    on_step: Callable[[Retrained], None] = lambda step: None,
    *,
    environment: Mapping[str, str] | None = None,
    make_ranks: MakeRanks = local_ranks,
    begun: float | None = None,
) -> Report:
    """Train them, from the nearest checkpoint or the run's beginning. environment: versions of the parts here.

    begun: `time.perf_counter` when the work began, by default now. It ends at the first step that the log itself
    contradicts, or before a version to save at the first that differs. Raises RunNotFound, InvalidValue for steps that
    there are not, TrainerError where the run's beginning is another one, StorageError.
    """
    begun = time.perf_counter() if begun is None else begun
    chain = await read_chain(opened.log)
    settings = with_topology(opened.settings, wanted.tensor, wanted.ranks)
    exact, steps, save, base = is_same(settings, opened.settings), _steps(chain, wanted), wanted.save, wanted.from_base
    if save is not None and not exact:
        raise ImpossibleCombination("--save-version makes weights that the run had: only the run's own topology can")
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
    if (wrong := report.wrong) is None:
        return report
    vague = [one.version for one in chain.trained.restored if one.optimizer is Fidelity.APPROXIMATE]
    restored = max((version for version in vague if first <= version <= wrong.step), default=None)
    return replace(report, causes=likely_causes(wrong, chain.started, environment or {}, restored=restored))


@asynccontextmanager
async def _by_distance(
    opened: OpenedRun, chain: Chain, steps: range, from_base: bool, make_ranks: MakeRanks
) -> AsyncIterator[tuple[Judge, str]]:
    """How steps are judged on another topology, and what is compared, in words."""
    written = partial(weights_folder, opened, chain)
    if all(written(step + 1) for step in steps):
        yield partial(far_from, written), "the weights after each step with the files that the run has written"
        return
    with tempfile.TemporaryDirectory(prefix="slime-events-retrain-") as folder:
        store = WeightStore(folder, durable=False)
        async with make_ranks(opened.settings) as ranks, past_versions(opened, chain) as past:
            first = await begin(opened, chain, ranks, newest=steps.start, past=past, from_base=from_base)
            own = run_steps(opened, chain, range(first, steps.stop))
            if wrong := await retrain_steps(ranks, partial(same_digests, keep=store), own, past=past):
                raise TrainerError(
                    f"step {wrong.step} differs from what was committed on the run's own topology already: "
                    f"{', '.join(map(str, wrong.differences))}"
                )
        yield (
            partial(far_from, store.folder),
            f"the weights after each step with those of a training on the run's own topology "
            f"({topology_text(opened.settings)}) just before, whose digests were all those of the log: the run's own "
            "files are gone",
        )


async def _save(ranks: Ranks, settings: TrainSettings, save: Save) -> tuple[str, ...]:
    """Write the version that the ranks are at; the folders."""
    store = WeightStore(save.out, base=settings.trainer.hf_checkpoint)
    manifest = await ranks.write_weights(store, save.version, save.version - 1 if save.version else None)
    folder = store.folder(save.version, manifest.digest)
    if not save.checkpoint:
        return (folder,)
    checkpoint = CheckpointFolders(f"{save.out}/checkpoints").of(save.version)
    await ranks.save_checkpoint(checkpoint)
    return folder, checkpoint


def _steps(chain: Chain, wanted: Wanted) -> range:
    """What is to be trained; with a version to save alone, up to that version."""
    if wanted.save is None:
        return chain.chosen(wanted.steps)
    version = wanted.save.version
    chain.check(version)
    if wanted.steps is None:
        return range(version, version)
    steps = chain.chosen(wanted.steps)
    if not steps.start <= version <= steps.stop:
        raise ImpossibleCombination(
            f"--save-version {version} is none of the versions {steps.start} to {steps.stop} of --steps {wanted.steps}"
        )
    return steps


def _origin(first: int, chain: Chain) -> str:
    if first in chain.trained.saved:
        return f"the checkpoint of version {first}"
    return f"version {first}, which the run branched off from" if first else "the base checkpoint"
