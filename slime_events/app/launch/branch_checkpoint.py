"""`put_branch_checkpoint`: make the checkpoint that a branch's trainer begins with, in the branch's folder.

    parent's nearest checkpoint at or before the version | its base
        -> the steps since, trained again from the parent's log to the same digests -> checkpoint

The checkpoint is made before the trainer starts, on ranks with the parent's settings, because the branch may have other
settings and only the parent's give the same digests. If the branch resets its optimizer, the parent's weight files are
enough. Once the checkpoint exists, the branch does not need its parent. If it is lost, the next launch makes it again.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from actors.offline.retrainer import MakeRanks, ranks_at, weights_folder
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.local_ranks import local_ranks
from schemas.errors import TrainerError, WeightsDamaged
from schemas.runs import Branched
from schemas.trust import is_doubted
from slime_events.analysis.retrain.settings import with_base
from slime_events.analysis.retrain.version_chain import read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.run_reader import OpenedRun, branched_of, open_run
from storage.folders.places import open_folders
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from storage.weights.whole_copies import whole_copy

SCRATCH = ".beginning"


async def put_branch_checkpoint(
    branched: Branched,
    own: TrainSettings,
    checkpoints: str,
    *,
    note: Callable[[str], None],
    make_ranks: MakeRanks = local_ranks,
) -> None:
    """Make the checkpoint unless it exists. own: the branch's settings. checkpoints: its folder of checkpoints.

    Raises RunNotFound or StorageError if the parent cannot be opened, InvalidValue if its base checkpoint is gone,
    TrainerError if a step gives another digest than the committed one.
    """
    folders, begun = CheckpointFolders(checkpoints), time.perf_counter()
    if await asyncio.to_thread(folders.has, branched.version):
        return
    folder, scratch = folders.new(branched.version), open_folders(checkpoints).work / SCRATCH
    note(f"making version {branched.version} of run {branched.run}, from which this run continues")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    async with open_run(branched.where) as opened:
        exported = None if branched.optimizer_digest else await _stored(opened, branched)
        if exported is None:
            exported = await _make_again(opened, branched, own, (folder, scratch), note=note, make_ranks=make_ranks)
    if exported is not None:
        # Save the exported weights with a new optimizer and schedule of the branch.
        with whole_copy(exported) as exported_here:
            trainer = structs.replace(own.trainer, load=str(exported_here))
            async with make_ranks(structs.replace(own, trainer=trainer)) as ranks:
                await ranks.save_checkpoint(folder)
    shutil.rmtree(scratch)
    note(f"version {branched.version} is ready, after {time.perf_counter() - begun:.1f} s")


async def _stored(opened: OpenedRun, branched: Branched) -> str | None:
    """Return the folder of the version's weights, if the parent still has it complete."""
    folder = weights_folder(opened, await read_chain(opened.log), branched.version)
    if folder is not None:
        try:
            await asyncio.to_thread(verify, folder, branched.weights_digest)
            return folder
        except WeightsDamaged:
            return None
    return None


async def _make_again(
    opened: OpenedRun,
    branched: Branched,
    own: TrainSettings,
    places: tuple[str, Path],
    *,
    note: Callable[[str], None],
    make_ranks: MakeRanks,
) -> str | None:
    """Train the parent up to the version again, and save its trainer.

    places: path or URL of the checkpoint, and a folder for other files. If the branch resets its optimizer, writes only
    the weights to another folder and returns that folder.
    """
    base, (folder, scratch) = own.trainer.hf_checkpoint, places
    other = base if base != opened.settings.trainer.hf_checkpoint else None
    parent = await trainable(opened, other, scratch / branched.run, note=note, make_ranks=make_ranks)
    async with make_ranks(parent.settings) as ranks:
        state = await ranks_at(parent, branched.version, ranks)
        if state.weights != branched.weights_digest:
            raise TrainerError(
                f"version {branched.version} of the run at {branched.where} has weights {state.weights}, but the "
                f"branch began with {branched.weights_digest}: that place now holds another run"
            )
        if branched.optimizer_digest:
            await ranks.save_checkpoint(folder)
            return None
        weights = WeightStore(str(scratch / "weights"), base=parent.settings.trainer.hf_checkpoint, durable=False)
        before = branched.version - 1 if branched.version else None
        await ranks.write_weights(weights, branched.version, before)
        return weights.folder(branched.version)


async def trainable(
    opened: OpenedRun,
    base: str | None,
    scratch: Path,
    *,
    note: Callable[[str], None],
    make_ranks: MakeRanks = local_ranks,
) -> OpenedRun:
    """Return the run with settings from which its ranks can start.

    Sets its base checkpoint. If the run is a branch whose first checkpoint is lost, makes that version again in
    `scratch`. base: replaces the run's base checkpoint if that is gone. Raises as `put_branch_checkpoint`.
    """
    folder = opened.folder
    models = await asyncio.to_thread(LocalModels.of, opened.settings)
    settings = with_base(models.settings, folder.weights if folder else None, base)
    before = await branched_of(opened.log)
    saved = settings.trainer.save or (str(folder.checkpoints) if folder else None)
    folders = CheckpointFolders(saved) if saved and not is_doubted(saved) else None
    if before and not (folders is not None and await asyncio.to_thread(folders.has, before.version)):
        await put_branch_checkpoint(before, settings, str(scratch), note=note, make_ranks=make_ranks)
        settings = structs.replace(settings, trainer=structs.replace(settings.trainer, save=str(scratch)))
    return replace(opened, settings=settings)
