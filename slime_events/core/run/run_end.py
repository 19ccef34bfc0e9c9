"""`until_over`: wait for the end of a run, for a role that follows nothing else."""

from schemas.subjects import about
from slime_events.core.run.participant import Participant
from storage.follow import Follower


async def until_over(worker: Participant) -> None:
    """Wait for the end of the worker's incarnation of the run."""
    since = worker.incarnation.since if worker.incarnation else 1
    over = False
    async with Follower(worker.log, max(1, since), about(worker.log.run, "run", "run")) as follower:
        while not (over and follower.caught_up):
            for recorded in await follower.next(wait_s=1.0):
                over = worker.is_over(over, recorded.envelope.event)
