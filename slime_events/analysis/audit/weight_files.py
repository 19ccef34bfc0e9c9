"""Weight files: do the folders that are still there hold what was published?"""

from __future__ import annotations

from pathlib import Path

from schemas.errors import InvalidValue, WeightsDamaged
from schemas.weights import WeightsPublished
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.finding import Finding
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded
from storage.weights.store import local_folder, verify


class WeightFiles(Check):
    """Every byte of every folder. Older versions are removed while a run goes on: those are counted.

    weights: the run's weights folder, where it is not where the log says (a copied run).
    """

    name = "files"
    promise = "weight folders that are still there have the digest of the log"
    hears = (WeightsPublished,)

    def __init__(self, ledger: Ledger, weights: Path | None = None) -> None:
        super().__init__(ledger)
        self._weights = weights
        self._said: list[Recorded] = []
        self._verified = 0

    def apply(self, recorded: Recorded) -> None:
        self._said.append(recorded)

    def finish(self) -> list[Finding]:
        for recorded in self._said:
            event = recorded.envelope.event
            assert isinstance(event, WeightsPublished)
            folder = self._folder(event.url)
            if folder is not None:
                self._verify(recorded, folder, event.digest)
        return self.findings

    def _verify(self, recorded: Recorded, folder: Path, digest: str) -> None:
        try:
            verify(folder, digest)
        except (WeightsDamaged, OSError) as error:
            if not folder.is_dir():
                return  # removed while it was read
            self.find(recorded, str(error), "engines and exports would take damaged weights")
        self._verified += 1

    def _folder(self, url: str) -> Path | None:
        try:
            said = local_folder(url)
        except InvalidValue:
            return None
        places = [said] if self._weights is None else [said, self._weights / said.name]
        return next((place for place in places if place.is_dir()), None)

    def counts(self) -> Counts:
        return {"verified": self._verified, "removed since": len(self._said) - self._verified}
