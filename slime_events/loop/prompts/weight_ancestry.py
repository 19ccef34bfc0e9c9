"""`WeightAncestry`: digests of the weight versions of a run and its ancestors. A fold of their logs.

Equal digests mean equal weights. Versions of two runs are related by the optimizer steps since their newest common one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from schemas.doc import doc
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
    """Weight versions of a run and its ancestors."""

    digests: Annotated[dict[int, str], doc("version to the sha256 of its tensors, hex")] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Fold an event in. Events without weights are ignored."""
        if isinstance(event, WeightsPublished):
            self.digests[event.version] = event.digest
        elif isinstance(event, StepCommitted):
            self.digests[event.version] = event.weights_digest

    def common(self, other: WeightAncestry) -> CommonVersion | None:
        """Return the newest version that both runs have, with its newest number in the other run; None without any."""
        numbers = {digest: version for version, digest in sorted(other.digests.items())}
        shared = [version for version, digest in self.digests.items() if digest in numbers]
        return CommonVersion(max(shared), numbers[self.digests[max(shared)]]) if shared else None


async def read_ancestry(log: Readable) -> WeightAncestry:
    """Return the ancestry of a run, as far back as its ancestors' logs can be opened."""
    ancestry = WeightAncestry(await _digests(log))
    branched = await branched_of(log)
    while branched is not None:
        try:
            async with open_run(branched.where) as parent:
                older = await _digests(parent.log)
                first, branched = branched.version, await branched_of(parent.log)
        except RunNotFound:
            break  # the run's own log has its first version: the ancestry begins there
        ancestry.digests = {version: digest for version, digest in older.items() if version <= first} | ancestry.digests
    return ancestry


async def _digests(log: Readable) -> dict[int, str]:
    ancestry = WeightAncestry()
    for event_type in FOLDED:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            ancestry.apply(recorded.envelope.event)
    return ancestry.digests
