"""`restore`: the ranks brought to the newest checkpoint that can be trusted, or back to the beginning.

The beginning is the base checkpoint; a branch's is a checkpoint of the version that it branched off from, which was put
into its folder before its trainer was started.
"""

from __future__ import annotations

import asyncio
import logging

from actors.trainer.checkpoint_folders import CheckpointFolders
from actors.trainer.trainer_ranks import Ranks
from schemas.checkpoints import CheckpointSaved
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.loop.training.training_state import TrainingState
from storage.weights.store import digest_of

log = logging.getLogger(__name__)


async def restore(ranks: Ranks, trained: TrainingState, folders: CheckpointFolders, *, newest: int) -> int:
    """Load a checkpoint of version `newest` or before; the version that the ranks are at then, the first of the run
    where it is the beginning.

    One that is incomplete, does not fit or has other digests than were committed is passed over. The ranks must be as
    they were built. Raises TrainerError where a branch has lost its beginning too.
    """
    touched = False
    for version in sorted((v for v in trained.saved if v <= newest), reverse=True):
        saved = trained.saved[version]
        reason = "it is not what was committed" if not trained.matches(saved) else None
        if reason is None:
            touched = True
            reason = await _load(ranks, saved, folders.find(saved))
        if reason is None:
            log.info("restored from the checkpoint of version %d", version)
            return version
        log.warning("the checkpoint of version %d is passed over: %s", version, reason)
    if trained.is_branch:
        await _load_beginning(ranks, trained, folders)
    elif touched:
        await ranks.reset()
    return trained.first


async def _load_beginning(ranks: Ranks, trained: TrainingState, folders: CheckpointFolders) -> None:
    weights, optimizer = trained.committed[trained.first]
    folder = folders.of(trained.first)
    saved = CheckpointSaved(version=trained.first, url=folder, weights_digest=weights, optimizer_digest=optimizer)
    if reason := await _load(ranks, saved, folder):
        raise TrainerError(
            f"the run branches off from version {trained.first}, and that is not to be had: {reason}. Remove {folder}, "
            "and `slime-events resume` makes it again from the run that it branched off from"
        )


async def _load(ranks: Ranks, saved: CheckpointSaved, folder: str) -> str | None:
    """Why the ranks are not at the checkpoint now; None where they are."""
    try:
        await ranks.load_checkpoint(folder)
    except CheckpointMismatch as error:
        return str(error)
    found = await asyncio.to_thread(digest_of, await ranks.export_weights()), await ranks.optimizer_digest()
    # A branch whose optimizer begins anew does not say the digest of a state that nobody has had before.
    if found == (saved.weights_digest, saved.optimizer_digest or found[1]):
        return None
    return (
        f"{folder} holds weights {found[0]} and optimizer state {found[1]}, saved were {saved.weights_digest} and "
        f"{saved.optimizer_digest}"
    )
