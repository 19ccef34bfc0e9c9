"""`WeightAncestry`: the digests of a run's weight versions, and of its ancestors'. A fold of their logs.

Equal digests are equal weights. Versions of two runs are related by the optimizer steps since their newest common one.
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

FOLDED = ("weights.published", "step.committed")


@dataclass(slots=True)
class WeightAncestry:
    """digests: of the tensors, sha256 hex, by version."""

    digests: dict[int, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Fold one event in; those without weights are ignored."""
        if isinstance(event, WeightsPublished):
            self.digests[event.version] = event.digest
        elif isinstance(event, StepCommitted):
            self.digests[event.version] = event.weights_digest

    def common(self, other: WeightAncestry) -> CommonVersion | None:
        """The newest version that the other run has too, with its newest number there; None without any."""
        numbers = {digest: version for version, digest in sorted(other.digests.items())}
        shared = [version for version, digest in self.digests.items() if digest in numbers]
        return CommonVersion(max(shared), numbers[self.digests[max(shared)]]) if shared else None


async def read_ancestry(log: Readable) -> WeightAncestry:
    """The ancestry of a run, as far back as its parents' logs can be opened."""
    ancestry = WeightAncestry(await _digests(log))
    branched = await branched_of(log)
    while branched is not None:
        try:
            async with open_run(branched.where) as parent:
                older = await _digests(parent.log)
                first, branched = branched.version, await branched_of(parent.log)
        except RunNotFound:
            break  # the run's own log names its first version: the ancestry begins there
        ancestry.digests = {version: digest for version, digest in older.items() if version <= first} | ancestry.digests
    return ancestry


async def _digests(log: Readable) -> dict[int, str]:
    ancestry = WeightAncestry()
    for event_type in FOLDED:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            ancestry.apply(recorded.envelope.event)
    return ancestry.digests
