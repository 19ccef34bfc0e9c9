"""Weights: digests chain from the first version to the last, in the log and in the folders."""

from pathlib import Path

from schemas.checkpoints import CheckpointSaved
from schemas.errors import WeightsDamaged
from schemas.runs import FinishReason, RunFinished
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.report import Finding
from storage.folders.places import is_remote, local_path, open_folders, parent_of
from storage.log import Recorded
from storage.weights.stored_version import verify


class Weights(Check):
    """The first version, then what each step committed. Engines and checkpoints record the same digests."""

    name = "weights"
    promise = "digests chain from the first version, engines and checkpoints have the same"
    counted = ("versions", "activations", "checkpoints")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._stored = set[int]()

    def _on_weights_published(self, event: WeightsPublished) -> None:
        published = self.ledger.published
        self.seen["versions"] += event.version not in published
        if event.version in published:
            self.find(
                f"v{event.version} was already published", "engines may run two different versions of that number"
            )
        elif event.version <= max(published, default=-1):
            self.find(f"v{event.version} comes after v{max(published)}", "engines went back to older weights")
        parent = event.version - 1 if event.version else None
        if event.parent != parent:
            self.find(f"its parent is {event.parent}, not {parent}", "the chain of versions is broken")
        first, branched = self.ledger.first, self.ledger.branched
        if event.version == first:
            if branched is not None and event.digest != branched.weights_digest:
                wrong = f"its digest is not that of v{first} of {branched.run}, which the run branches off from"
                self.find(wrong, "the branch starts from different weights")
            return
        step = self.ledger.steps.get(event.version - 1)
        if first not in published:
            self.find(f"version {first} was never published", "the chain of versions has no beginning")
        if step is None:
            self.find(f"no step committed v{event.version}", "the origin of these weights is unknown")
        elif step.weights_digest != event.digest:
            wrong = f"its digest is not the one that step {step.step} committed"
            self.find(wrong, "engines run weights that no step made")

    def _on_weights_stored(self, event: WeightsStored) -> None:
        version, step = event.version, self.ledger.steps.get(event.version - 1)
        if step is None:
            self.find(f"no step committed v{version}", "the origin of these weights is unknown")
        elif step.weights_digest != event.digest:
            self.find(f"its digest is not the one that step {step.step} committed", "the files are of other weights")
        elif step.stored or version in self._stored:
            self.find(f"v{version} was already stored", "the run evaluates or ends by a version that is not stored")
        self._stored.add(version)

    def _on_run_finished(self, event: RunFinished) -> None:
        steps = self.ledger.steps.values() if event.reason is FinishReason.ALL_STEPS else ()
        if lacking := [step.version for step in steps if not step.stored and step.version not in self._stored]:
            self.find(f"v{min(lacking)} was never stored", "the run has ended, and these weights may be lost")

    def _on_weights_activated(self, event: WeightsActivated) -> None:
        self.seen["activations"] += 1
        published = self.ledger.published.get(event.version)
        if published is None:
            self.find(f"v{event.version} was not published before it", "the engine's weights are unknown")
        elif published.digest != event.digest:
            self.find("its digest is not the published one", "the engine does not run the trainer's weights")

    def _on_checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.seen["checkpoints"] += 1
        step = self.ledger.steps.get(event.version - 1)
        if step is None:
            self.find(f"no step committed v{event.version}", "no trainer can resume from this checkpoint")
            return
        recorded = (step, *self.ledger.restored.get(event.version, ()))
        states = {(state.optimizer_digest, state.critic_digest) for state in recorded}
        is_recorded = (event.optimizer_digest, event.critic_digest) in states
        if event.weights_digest != step.weights_digest or not is_recorded:
            wrong = f"its digests are not those that step {step.step} committed, nor those of a trainer that took over"
            self.find(wrong, "a run resumed from it trains something else")


class WeightFiles(Check):
    """Verifies every byte of every folder. A run removes older versions while it continues: these are counted.

    weights: path or URL of the run's versions. It is searched first, because a copied run's log names the files of the
    original. No other URL is read: the log may be of an archive that is not trusted.
    """

    name = "files"
    promise = "weight folders that still exist have the digest of the log"
    counted = ("verified", "removed since")

    def __init__(self, ledger: Ledger, weights: str | Path | None = None) -> None:
        super().__init__(ledger)
        self._weights = weights
        self._published: list[tuple[Recorded, WeightsPublished]] = []

    def _on_weights_published(self, event: WeightsPublished) -> None:
        self._published.append((self.recorded, event))

    def finish(self) -> list[Finding]:
        stored = open_folders(self._weights) if self._weights is not None else None
        names = stored.names() if stored is not None else []
        for recorded, event in self._published:
            # The same version may have been written again under another name.
            own, alike = parent_of(event.url)[1], f"v{event.version:06d}-{event.digest[:12]}"
            name = own if own in names else next((name for name in names if name.startswith(alike)), None)
            self.recorded = recorded
            folder = stored.locate(name) if stored is not None and name else self._published_folder(event.url)
            self.seen["verified" if folder and self._is_verified(folder, event.digest) else "removed since"] += 1
        return self.findings

    def _is_verified(self, folder: str, digest: str) -> bool:
        try:
            verify(folder, digest)
        except (WeightsDamaged, OSError) as error:
            place, name = parent_of(folder)
            if not open_folders(place).is_whole(name):
                return False  # removed while it was read
            self.find(str(error), "engines and exports would use damaged weights")
        return True

    def _published_folder(self, url: str) -> str | None:
        return str(local_path(url)) if not is_remote(url) and local_path(url).is_dir() else None
