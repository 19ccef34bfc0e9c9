"""`ranks_at`: ranks at a weight version of a run, from its nearest checkpoint or from its beginning."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from actors.offline.retrainer import retrain_steps, run_steps, same_digests
from actors.trainer.checkpoints import CheckpointFolders, restore
from actors.trainer.ranks import Ranks
from schemas.errors import TrainerError
from slime_events.analysis.retrain.difference import Retrained
from slime_events.analysis.retrain.version_chain import Chain, read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.training.training_state import Digests, TrainingState
from storage.weights.store import digest_of

MakeRanks = Callable[[TrainSettings], AbstractAsyncContextManager[Ranks]]


async def ranks_at(
    opened: OpenedRun,
    version: int,
    ranks: Ranks,
    *,
    from_base: bool = False,
    on_step: Callable[[Retrained], None] = lambda step: None,
) -> Digests:
    """Bring ranks, as they were built from `opened.settings`, to a version that the run has made; its digests.

    They begin with the nearest usable checkpoint at or before it, or with the run's beginning, and train the steps
    since once more from the log. Raises RunNotFound for a version that was not made, TrainerError at the first step
    that differs from what was committed, StorageError where the log does not hold what was sealed.
    """
    chain = await read_chain(opened.log)
    chain.check(version)
    begun = await begin(opened, chain, ranks, newest=version, from_base=from_base)
    steps = run_steps(opened, chain, range(begun, version))
    if wrong := await retrain_steps(ranks, same_digests, steps, on_step):
        raise TrainerError(
            f"step {wrong.step} of run {opened.run} differs from what was committed: "
            f"{', '.join(map(str, wrong.differences))}: see `slime-events retrain {opened.where}`"
        )
    if version > begun:
        return chain.trained.committed[version]
    return Digests(digest_of(await ranks.export_weights()), await ranks.optimizer_digest())


async def begin(
    opened: OpenedRun, chain: Chain, ranks: Ranks, *, newest: int, from_base: bool = False, exact: bool = True
) -> int:
    """Bring ranks to the nearest checkpoint at or before `newest`, or to the run's beginning; the version that it is.

    exact: the ranks have the run's topology, so that the optimizer's digest is comparable. Raises TrainerError where
    the beginning has other weights than the run began with.
    """
    trained = chain.trained if exact else _by_weights(chain.trained)
    trained = replace(trained, saved={}) if from_base else trained
    version = await restore(ranks, trained, _folders(opened, trained), newest=newest)
    first = chain.trained.published.get(version)
    if version == 0 and first is not None and (weights := digest_of(await ranks.export_weights())) != first.digest:
        raise TrainerError(
            f"the run began with weights {first.digest}, but the base checkpoint has {weights}: give the one that it "
            "began with (--hf-checkpoint FOLDER)"
        )
    return version


def _by_weights(trained: TrainingState) -> TrainingState:
    """Checkpoints that their weights alone vouch for: on another topology the optimizer's digest differs."""
    committed = {version: Digests(digests.weights, "") for version, digests in trained.committed.items()}
    saved = {
        version: structs.replace(one, optimizer_digest="")
        for version, one in trained.saved.items()
        if trained.matches(one)
    }
    return replace(trained, committed=committed, saved=saved)


def _folders(opened: OpenedRun, trained: TrainingState) -> CheckpointFolders:
    """Where the run's checkpoints are: as its settings say, in its folder, or where the log last named one."""
    if opened.settings.trainer.save:
        return CheckpointFolders(opened.settings.trainer.save)
    if opened.folder is not None:
        return CheckpointFolders(str(opened.folder.checkpoints))
    newest = trained.saved.get(max(trained.saved, default=-1))
    return CheckpointFolders(str(Path(newest.url).parent) if newest else f"{opened.where}/checkpoints")
