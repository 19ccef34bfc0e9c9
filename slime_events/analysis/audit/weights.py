"""Weights: do the digests chain from the first version to the last, in the log and in the folders?"""

from pathlib import Path

from schemas.checkpoints import CheckpointSaved
from schemas.errors import InvalidValue, WeightsDamaged
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.analysis.audit.check import Check, Finding
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded
from storage.weights.store import local_folder, verify


class Weights(Check):
    """The first version, then for each step what it committed; engines and checkpoints say the same digests."""

    name = "weights"
    promise = "digests chain from the first version, engines and checkpoints have the same"
    counted = ("versions", "activations", "checkpoints")

    def _on_weights_published(self, event: WeightsPublished) -> None:
        known = self.ledger.published
        self.seen["versions"] += event.version not in known
        if event.version in known:
            self.find(f"v{event.version} was published before", "engines may run two different ones")
        elif event.version <= max(known, default=-1):
            self.find(f"v{event.version} comes after v{max(known)}", "engines went back to older weights")
        parent = event.version - 1 if event.version else None
        if event.parent != parent:
            self.find(f"its parent is {event.parent}, not {parent}", "the chain of versions is broken")
        first, branched = self.ledger.first, self.ledger.branched
        if event.version == first:
            if branched is not None and event.digest != branched.weights_digest:
                wrong = f"its digest is not that of v{first} of {branched.run}, which the run branches off from"
                self.find(wrong, "the branch does not go on from there")
            return
        step = self.ledger.steps.get(event.version - 1)
        if first not in known:
            self.find(f"version {first} was never published", "the chain of versions has no beginning")
        if step is None:
            self.find(f"no step committed v{event.version}", "nobody knows what made these weights")
        elif step.weights_digest != event.digest:
            wrong = f"its digest is not the one that step {step.step} committed"
            self.find(wrong, "engines run weights that no step made")

    def _on_weights_activated(self, event: WeightsActivated) -> None:
        self.seen["activations"] += 1
        published = self.ledger.published.get(event.version)
        if published is None:
            self.find(f"v{event.version} was not published before it", "nobody knows what the engine runs")
        elif published.digest != event.digest:
            self.find("its digest is not the published one", "the engine runs other weights than the trainer made")

    def _on_checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.seen["checkpoints"] += 1
        step = self.ledger.steps.get(event.version - 1)
        if step is None:
            self.find(f"no step committed v{event.version}", "nobody can resume from this checkpoint")
            return
        known = (step, *self.ledger.restored.get(event.version, ()))
        states = {(one.optimizer_digest, one.critic_digest) for one in known}
        is_known = (event.optimizer_digest, event.critic_digest) in states
        if event.weights_digest != step.weights_digest or not is_known:
            wrong = f"its digests are not those that step {step.step} committed or a trainer went on with"
            self.find(wrong, "whoever resumes from it trains something else")


class WeightFiles(Check):
    """Every byte of every folder. Older versions are removed while a run goes on: those are counted.

    weights: the run's weights folder. It is looked at first: a copied run's log says where the original's files are.
    """

    name = "files"
    promise = "weight folders that are still there have the digest of the log"
    counted = ("verified", "removed since")

    def __init__(self, ledger: Ledger, weights: Path | None = None) -> None:
        super().__init__(ledger)
        self._weights = weights
        self._published: list[tuple[Recorded, WeightsPublished]] = []

    def _on_weights_published(self, event: WeightsPublished) -> None:
        self._published.append((self.recorded, event))

    def finish(self) -> list[Finding]:
        for recorded, event in self._published:
            self.recorded, folder = recorded, self._folder(event.url)
            self.seen["verified" if folder and self._is_verified(folder, event.digest) else "removed since"] += 1
        return self.findings

    def _is_verified(self, folder: Path, digest: str) -> bool:
        try:
            verify(folder, digest)
        except (WeightsDamaged, OSError) as error:
            if not folder.is_dir():
                return False  # removed while it was read
            self.find(str(error), "engines and exports would take damaged weights")
        return True

    def _folder(self, url: str) -> Path | None:
        try:
            published = local_folder(url)
        except InvalidValue:
            return None
        folders = [published] if self._weights is None else [self._weights / published.name, published]
        return next((folder for folder in folders if folder.is_dir()), None)
