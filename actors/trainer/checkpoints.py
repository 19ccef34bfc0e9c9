"""A run's trainer checkpoints: where they are (`CheckpointFolders`), and which one is loaded (`restore`)."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from actors.trainer.ranks import Ranks
from schemas.checkpoints import CheckpointSaved
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.loop.training.training_state import Digests, TrainingState, digests_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointFolders:
    """`<root>/v000012`, one for each version that was due."""

    root: str

    def of(self, version: int) -> str:
        """The folder of a version."""
        return f"{self.root}/v{version:06d}"

    def find(self, saved: CheckpointSaved) -> str:
        """Where a checkpoint of the log is: at its url, or here if the run's folder was moved."""
        return saved.url if Path(saved.url).exists() else self.of(saved.version)

    def make_way(self, version: int) -> None:
        """Move away an older folder of that name: a checkpoint that was refused or never committed. One is kept."""
        folder = Path(self.of(version))
        if folder.exists():
            aside = folder.with_name(f".{folder.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def remove(self, versions: Collection[int]) -> None:
        """Delete checkpoints (see `Retention` for which may go); those that are not there are passed over."""
        for folder in map(Path, map(self.of, versions)):
            # Renamed first, so that a half-deleted folder is never taken for a checkpoint.
            gone = folder.with_name(f".{folder.name}.removed")
            with contextlib.suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


async def restore(
    ranks: Ranks,
    trained: TrainingState,
    folders: CheckpointFolders,
    *,
    newest: int,
    lacks: Callable[[int], str | None] = lambda version: None,
) -> int:
    """Load a checkpoint of version `newest` or before, or go back to the beginning; the version of the ranks then.

    The beginning is the base checkpoint; a branch's is a checkpoint of the version that it branched off from, which was
    put into its folder before its trainer was started. A checkpoint that is incomplete, does not fit or has other
    digests than were committed is passed over, and so is one that `lacks` something else, in words. The ranks must be
    as they were built. Raises TrainerError where a branch has lost its beginning too.
    """
    touched = False
    for version in sorted((v for v in trained.saved if v <= newest), reverse=True):
        saved = trained.saved[version]
        reason = "it is not what was committed" if not trained.matches(saved) else lacks(version)
        if reason is None:
            touched = True
            reason = await _load(ranks, saved, folders.find(saved))
        if reason is None:
            log.info("restored from the checkpoint of version %d", version)
            return version
        log.warning("the checkpoint of version %d is passed over: %s", version, reason)
    if touched:  # a critic that the beginning does not have is as it was built
        await ranks.reset()
    if trained.is_branch:
        weights, optimizer, critic = trained.committed[trained.first]
        folder = folders.of(trained.first)
        saved = CheckpointSaved(
            version=trained.first,
            url=folder,
            weights_digest=weights,
            optimizer_digest=optimizer,
            critic_digest=critic,
        )
        if reason := await _load(ranks, saved, folder):
            raise TrainerError(
                f"the run branches off from version {trained.first}, and that is not to be had: {reason}. Remove "
                f"{folder}, and `slime-events resume` makes it again from the run that it branched off from"
            )
    return trained.first


async def _load(ranks: Ranks, saved: CheckpointSaved, folder: str) -> str | None:
    """Why the ranks are not at the checkpoint now; None where they are."""
    try:
        await ranks.load_checkpoint(folder)
    except CheckpointMismatch as error:
        return str(error)
    weights = await ranks.weights_digest()
    optimizer, critic = saved.optimizer_digest, saved.critic_digest
    if not await asyncio.to_thread(_is_of_parts, Path(folder)):
        # None of an optimizer that a branch begins anew, which no run has had before, and with --optimizer-digest off.
        optimizer = await ranks.optimizer_digest() if optimizer else ""
        # A branch may have no critic where its parent had one.
        critic = (await ranks.critic_digest() if critic else "") or critic
    found = Digests(weights, optimizer, critic)
    return None if found == digests_of(saved) else f"{folder} holds {found}, saved were {digests_of(saved)}"


def _is_of_parts(folder: Path) -> bool:
    """Whether several ranks of an older version saved it: their digests were of each rank's part, and cannot be
    compared with those of now. Its weights can.
    """
    try:
        mark = json.loads((folder / "trainer.json").read_text())
    except (OSError, ValueError):
        return False
    of = [mark.get(f"{kind}_parallel_size", 1) for kind in ("tensor_model", "data")]
    return mark.get("format", 1) < 2 and of != [1, 1]
