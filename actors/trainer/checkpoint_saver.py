"""`CheckpointSaver`: saves the checkpoints of a run, in the foreground or during training (`--async-save`)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.ranks import Ranks
from schemas.checkpoints import CheckpointSaved
from slime_events.core.training.save_progress import SaveState
from slime_events.loop.training.training_state import Digests

log = logging.getLogger(__name__)

Append = Callable[[CheckpointSaved], Awaitable[None]]


class CheckpointSaver:
    """Saves one checkpoint at a time.

    append: called with each checkpoint when it is complete on disk. last: the newest version that needs a checkpoint,
    without which the run does not end. background: save while the ranks train.

    A checkpoint that cannot be written in the background is dropped with a warning and counted in `failed`. In the
    foreground the error is raised.
    """

    def __init__(
        self, ranks: Ranks, folders: CheckpointFolders, append: Append, last: int, *, background: bool
    ) -> None:
        self._ranks, self._folders, self._append = ranks, folders, append
        self._last, self._background = last, background
        self._pending: tuple[CheckpointSaved, float] | None = None
        self.failed = 0

    @property
    def pending(self) -> set[int]:
        """The version that is being written, if any."""
        return {self._pending[0].version} if self._pending else set()

    async def save(self, version: int, digests: Digests, *, at_once: bool = False) -> None:
        """Save the ranks' version after the last save is done. at_once: save in the foreground."""
        await self._finish(wait=True)
        begun = time.perf_counter()
        await asyncio.to_thread(self._folders.make_way, version)
        saved = CheckpointSaved(
            version=version,
            url=self._folders.new(version),
            weights_digest=digests.weights,
            optimizer_digest=digests.optimizer,
            critic_digest=digests.critic,
        )
        if self._background and not at_once:
            await self._ranks.begin_checkpoint(saved.url)
            self._pending = saved, begun
        else:
            await self._ranks.save_checkpoint(saved.url)
            await self._append(_timed(saved, begun))

    async def settle(self, version: int, committed: Mapping[int, Digests], *, wait: bool = False) -> None:
        """Append the checkpoint that is being written, if it is complete. wait: wait until it is.

        If the run's last checkpoint failed, save the ranks' `version` in the foreground.
        """
        failed = await self._finish(wait=wait)
        if failed is not None and failed.version >= self._last:
            same = Digests(failed.weights_digest, failed.optimizer_digest, failed.critic_digest)
            await self.save(version, same if failed.version == version else committed[version], at_once=True)

    async def _finish(self, *, wait: bool) -> CheckpointSaved | None:
        """Append the checkpoint that is being written, if it is complete; return it if it failed."""
        if self._pending is None:
            return None
        saved, begun = self._pending
        progress = await self._ranks.finish_checkpoint(wait=wait)
        if progress.state is SaveState.WRITING:
            return None
        self._pending = None
        if progress.state is SaveState.SAVED:
            await self._append(_timed(saved, begun))
            return None
        self.failed += 1
        log.warning("the checkpoint of version %d could not be written: %s", saved.version, progress.problem)
        return saved


def _timed(saved: CheckpointSaved, begun: float) -> CheckpointSaved:
    return replace(saved, seconds=time.perf_counter() - begun)
