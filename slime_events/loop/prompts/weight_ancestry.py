"""`WeightLine`: the digests of a run's weight versions, and of those that it comes of. A fold of their logs.

Two runs that have weights of one digest have the same weights: what came before and after them is told apart by the
number of optimizer steps between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.errors import RunNotFound
from schemas.event import Event
from schemas.recorded import CommonVersion
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from schemas.weights import WeightsPublished
from slime_events.core.run.run_reader import branched_of, open_run
from storage.log import Readable

SAID_BY = ("weights.published", "step.committed")


@dataclass(slots=True)
class WeightLine:
    """digests: of the tensors, sha256 hex, by version."""

    digests: dict[int, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Fold one event in; those that name no weights are passed over."""
        if isinstance(event, WeightsPublished):
            self.digests[event.version] = event.digest
        elif isinstance(event, StepCommitted):
            self.digests[event.version] = event.weights_digest

    def common(self, there: WeightLine) -> CommonVersion | None:
        """The newest version of this line that the other has too, at its newest place there; None where there is
        none.
        """
        places = {digest: version for version, digest in sorted(there.digests.items())}
        shared = [version for version, digest in self.digests.items() if digest in places]
        return CommonVersion(max(shared), places[self.digests[max(shared)]]) if shared else None


async def read_line(log: Readable) -> WeightLine:
    """Of a run and, as far back as their logs are to be found, of the runs that it branched off from."""
    line = WeightLine(await _digests(log))
    branched = await branched_of(log)
    while branched is not None:
        try:
            async with open_run(branched.where) as parent:
                older = await _digests(parent.log)
                first, branched = branched.version, await branched_of(parent.log)
        except RunNotFound:
            break  # the run says its own first version again: that is the line as far as anybody can tell
        line.digests = {version: digest for version, digest in older.items() if version <= first} | line.digests
    return line


async def _digests(log: Readable) -> dict[int, str]:
    line = WeightLine()
    for event_type in SAID_BY:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            line.apply(recorded.envelope.event)
    return line.digests
