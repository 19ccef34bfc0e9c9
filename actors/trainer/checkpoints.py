"""A run's trainer checkpoints: their folders (`CheckpointFolders`), and which checkpoint is loaded (`restore`)."""

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from actors.trainer.ranks import Ranks
from schemas.checkpoints import CheckpointSaved
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.loop.training.training_state import Digests, TrainingState, digests_of
from storage.folders.places import is_remote, open_folders, parent_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointFolders:
    """Checkpoint folders `<root>/v000012` by version.

    In an object store the root is a URL, and each save has a new name, `<root>/v000012-<number>`: a trainer that was
    replaced cannot overwrite its successor's checkpoint.
    """

    root: str

    def of(self, version: int) -> str:
        """Return the path of a version's checkpoint, or in an object store the URL of its newest complete one.

        If there is none, a URL that does not exist.
        """
        if not is_remote(self.root):
            return f"{self.root}/v{version:06d}"
        folders = open_folders(self.root)
        return folders.locate([_name(version), *(n for n in folders.names() if n.startswith(f"{_name(version)}-"))][-1])

    def new(self, version: int) -> str:
        """Return the path or URL for a checkpoint that is about to be saved, after `make_way`."""
        if not is_remote(self.root):
            return self.of(version)
        return open_folders(self.root).locate(f"{_name(version)}-{secrets.token_hex(4)}")

    def find(self, saved: CheckpointSaved) -> str:
        """Return the folder of a recorded checkpoint: its url, or a folder here if the run's folder was moved.

        No URL outside of the root is returned: the log may be of an archive that is not trusted.
        """
        if is_remote(saved.url):
            return saved.url if parent_of(saved.url)[0] == self.root.rstrip("/") else self.of(saved.version)
        return saved.url if Path(saved.url).exists() else self.of(saved.version)

    def has(self, version: int, url: str | None = None) -> bool:
        """Return whether a version's checkpoint is there. url: that of a recorded one."""
        where = self.of(version) if url is None else url
        if not is_remote(where):
            return Path(where).is_dir()
        place, name = parent_of(where)
        return place == self.root.rstrip("/") and open_folders(place).is_whole(name)

    def make_way(self, version: int) -> None:
        """Rename an older folder of that name, a checkpoint that was refused or never committed. One copy is kept."""
        if is_remote(self.root):
            return
        folder = Path(self.of(version))
        if folder.exists():
            aside = folder.with_name(f".{folder.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def remove(self, versions: Collection[int]) -> None:
        """Delete the checkpoints of these versions, if they exist. `Retention` decides which can be deleted."""
        if is_remote(self.root):
            open_folders(self.root).remove([f"{_name(version)}-" for version in versions])
            return
        for folder in map(Path, map(self.of, versions)):
            # Rename first, so that a partly deleted folder never looks like a checkpoint.
            gone = folder.with_name(f".{folder.name}.removed")
            with contextlib.suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _name(version: int) -> str:
    return f"v{version:06d}"


async def restore(
    ranks: Ranks,
    trained: TrainingState,
    folders: CheckpointFolders,
    *,
    newest: int,
    lacks: Callable[[int], str | None] = lambda version: None,
) -> int:
    """Load a checkpoint of version `newest` or earlier, or return to the beginning; return the ranks' version.

    The beginning is the base checkpoint. The beginning of a branch is a checkpoint of the version from which it
    branched, which is put into its folder before its trainer starts. A checkpoint is skipped if it is incomplete, does
    not fit, has different digests than were committed, or if `lacks` returns a reason. The ranks must be as they were
    built. Raises TrainerError if a branch has lost its beginning.
    """
    touched = False
    for version in sorted((v for v in trained.saved if v <= newest), reverse=True):
        saved = trained.saved[version]
        reason = "it is not what was committed" if not trained.matches(saved) else lacks(version)
        if reason is None:
            touched = True
            reason = await _load(ranks, saved, await asyncio.to_thread(folders.find, saved))
        if reason is None:
            log.info("restored from the checkpoint of version %d", version)
            return version
        log.warning("skipping the checkpoint of version %d: %s", version, reason)
    if touched:  # reset returns a critic, which the beginning does not have, to its built state
        await ranks.reset()
    if trained.is_branch:
        weights, optimizer, critic = trained.committed[trained.first]
        folder = await asyncio.to_thread(folders.of, trained.first)
        saved = CheckpointSaved(
            version=trained.first,
            url=folder,
            weights_digest=weights,
            optimizer_digest=optimizer,
            critic_digest=critic,
        )
        if reason := await _load(ranks, saved, folder):
            raise TrainerError(
                f"the run branches from version {trained.first}, which cannot be loaded: {reason}. Remove {folder}: "
                "`slime-events resume` then makes it again from the original run"
            )
    return trained.first


async def _load(ranks: Ranks, saved: CheckpointSaved, folder: str) -> str | None:
    """Load a checkpoint; return why the ranks are not at it, or None if they are."""
    try:
        await ranks.load_checkpoint(folder)
    except CheckpointMismatch as error:
        return str(error)
    weights = await ranks.weights_digest()
    optimizer, critic = saved.optimizer_digest, saved.critic_digest
    if is_remote(folder) or not await asyncio.to_thread(_is_of_parts, Path(folder)):
        # Empty if a branch starts a new optimizer, which no run has had before, or with --optimizer-digest off.
        optimizer = await ranks.optimizer_digest() if optimizer else ""
        # A branch may have no critic although its parent had one.
        critic = (await ranks.critic_digest() if critic else "") or critic
    held = Digests(weights, optimizer, critic)
    return None if held == digests_of(saved) else f"{folder} holds {held}, but {digests_of(saved)} were saved"


def _is_of_parts(folder: Path) -> bool:
    """Return whether several ranks of an older version saved the checkpoint.

    Their optimizer digests were per rank and cannot be compared with today's digests. The weights' digest can.
    """
    try:
        mark = json.loads((folder / "trainer.json").read_text())
    except (OSError, ValueError):
        return False
    of = [mark.get(f"{kind}_parallel_size", 1) for kind in ("tensor_model", "data")]
    return mark.get("format", 1) < 2 and of != [1, 1]
