"""`restore`: the ranks brought to the newest checkpoint that can be trusted, or back to the beginning."""

from __future__ import annotations

import asyncio
import logging

from actors.checkpoint_folders import CheckpointFolders
from actors.trainer_ranks import Ranks
from schemas.checkpoints import CheckpointSaved
from schemas.errors import CheckpointMismatch
from slime_events.trained import Trained
from storage.weights_store import digest_of

log = logging.getLogger(__name__)


async def restore(ranks: Ranks, trained: Trained, folders: CheckpointFolders, *, newest: int) -> int:
    """Load a checkpoint of version `newest` or before; the version that the ranks are at then, 0 for the base.

    One that is incomplete, does not fit or has other digests than were committed is passed over. The ranks must be as
    they were built.
    """
    touched = False
    for version in sorted((v for v in trained.saved if v <= newest), reverse=True):
        saved = trained.saved[version]
        reason = "it is not what was committed" if not trained.vouches_for(saved) else None
        if reason is None:
            touched = True
            reason = await _load(ranks, saved, folders.find(saved))
        if reason is None:
            log.info("restored from the checkpoint of version %d", version)
            return version
        log.warning("the checkpoint of version %d is passed over: %s", version, reason)
    if touched:
        await ranks.reset()
    return 0


async def _load(ranks: Ranks, saved: CheckpointSaved, folder: str) -> str | None:
    """Why the ranks are not at the checkpoint now; None where they are."""
    try:
        await ranks.load_checkpoint(folder)
    except CheckpointMismatch as error:
        return str(error)
    found = await asyncio.to_thread(digest_of, await ranks.export_weights()), await ranks.optimizer_digest()
    if found == (saved.weights_digest, saved.optimizer_digest):
        return None
    return (
        f"{folder} holds weights {found[0]} and optimizer state {found[1]}, saved were {saved.weights_digest} and "
        f"{saved.optimizer_digest}"
    )
