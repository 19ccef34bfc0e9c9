"""`Dumper`: writes slime's rollout dumps while a run is on: a file for each batch that is sealed, and each evaluation.

It reads the log from its beginning whenever it starts and writes the same files again, so a lost one loses nothing.
"""

from __future__ import annotations

import asyncio

from slime_events.analysis.export.samples import Samples
from slime_events.analysis.export.writers import DumpWriter
from slime_events.core.run.participant import Participant
from slime_events.core.trajectory import Fetch
from storage.follow import Follower


class Dumper:
    """template: of the files' paths, with {rollout_id}."""

    def __init__(self, worker: Participant, fetch: Fetch, template: str) -> None:
        self._worker, self._writer = worker, DumpWriter(template)
        self._samples = Samples(worker.log.run, fetch)

    async def run(self) -> list[str]:
        """Until the run is over; the files written. Raises StoreUnavailable, NoSpace."""
        over = False
        async with Follower(self._worker.log) as follower:
            while not (over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    event = recorded.envelope.event
                    over = self._worker.is_over(over, event)
                    if samples := self._samples.apply(event, recorded.position):
                        await asyncio.to_thread(self._writer.write, samples)
        return self._writer.files
