"""Steps: each sealed batch committed once, every accepted sample trained once and within the staleness bound."""

from collections import Counter

from schemas.event import Purpose
from schemas.steps import StepClaimed, StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.report import Counts
from slime_events.loop.training.past_versions import PastVersions, old_version

APPROXIMATE = "steps after an approximate optimizer"
"""Made of exactly the version before, but retraining from an earlier checkpoint does not reproduce them."""


class Steps(Check):
    """Step s makes version s + 1 from version s, on the batch that was sealed for it."""

    name = "steps"
    promise = "each batch committed once, in order, with its digest and counts"
    counted = ("steps", "tokens", "trainers", "restored", APPROXIMATE)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._claim: StepClaimed | None = None
        self._models: dict[tuple[str, int], str] = {}

    def _on_step_claimed(self, event: StepClaimed) -> None:
        self._claim = event
        self.seen["trainers"] += 1

    def _on_trainer_restored(self, event: TrainerRestored) -> None:
        self.seen["restored"] += 1
        newest, step = self.ledger.steps_committed, self.ledger.steps.get(event.version - 1)
        if event.version != newest or event.weights is not Fidelity.EXACT:
            wrong = f"its trainer has {event.weights} weights of v{event.version}, and v{newest} is the newest"
            self.find(wrong, "the next version is not made from the newest")
        elif event.optimizer is Fidelity.EXACT and step:
            states = [(state.optimizer_digest, state.critic_digest) for state in (step, event)]
            if states[0] != states[1]:
                wrong = "it calls an optimizer or critic exact whose digest is not the committed one"
                self.find(wrong, "its word cannot be relied on")

    def _on_step_committed(self, event: StepCommitted) -> None:
        self.seen[APPROXIMATE] += self.ledger.is_approximate
        ledger, claim, producer = self.ledger, self._claim, self.recorded.envelope.producer
        self.seen["steps"] += event.step not in ledger.steps
        if claim is not None and claim.trainer != producer:
            wrong = f"{producer} committed it after {claim.trainer} had claimed step {claim.step}"
            self.find(wrong, "a replaced trainer still commits")
        if event.step in ledger.steps:
            self.find(f"step {event.step} was already committed", "its samples trained twice")
        elif event.step != ledger.steps_committed:
            self.find(f"step {event.step} comes after {ledger.steps_committed} steps", "a step is missing")
        if (event.parent_version, event.version) != (event.step, event.step + 1):
            wrong = f"it makes v{event.version} from v{event.parent_version}, not v{event.step + 1} from v{event.step}"
            self.find(wrong, "the chain of weight versions is broken")
        self._check_models(event)
        batch = ledger.batches.get(event.step)
        if batch is None:
            self.find("no batch was sealed for it", "its training data is unknown")
            return
        if batch.digest != event.batch_digest:
            self.find("its batch digest is not that of the sealed batch", "the step trained on something else")
        self.seen["tokens"] += event.tokens
        if batch.commands:
            return  # `Commands` counts its datums
        # `Followed` counts tokens of rollouts in another log.
        tokens = event.tokens if ledger.follows else ledger.tokens_of(batch)
        if (event.samples, event.tokens) != (count := len(batch.samples), tokens):
            wrong = f"it has {event.samples} samples of {event.tokens} tokens, and its batch {count} of {tokens}"
            self.find(wrong, "the step trained on something else")

    def _check_models(self, event: StepCommitted) -> None:
        """Check that models used beside the policy are the expected versions, or the same as before."""
        ledger, algorithm = self.ledger, self.ledger.rules.algorithm
        past = PastVersions(every=(algorithm.ref_update_interval if algorithm else None) or 0)
        for name, digest in event.models.items():
            version = past.reference(event.step, ledger.first) if name == "reference" else old_version(name)
            before: str | None
            if version is None:
                before = self._models.setdefault((name, ledger.incarnation), digest)
                wrong = f"its {name} is another model than in the steps before"
            else:
                before = ledger.digest_of(version)
                wrong = f"its {name} is not v{version}"
            if before not in (None, digest):
                self.find(wrong, "the step used another model's log-probs")

    def counts(self) -> Counts:
        waiting = len(self.ledger.batches.keys() - self.ledger.steps.keys())
        return self.seen | {"batches waiting for the trainer": waiting}


class Training(Check):
    """Counts samples over the committed steps, independently of how batches were made."""

    name = "training"
    promise = "every accepted sample trained once, or waiting"
    of_own_rollouts = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._trained: dict[str, int] = {}

    def _on_step_committed(self, event: StepCommitted) -> None:
        batch = self.ledger.batches.get(event.step)
        for name in batch.samples if batch else ():
            first = self._trained.setdefault(name, self.recorded.position)
            if first != self.recorded.position:
                self.find(f"sample {name} was already trained at position {first}", "it counts twice in the weights")
            sample = self.ledger.samples.get(name)
            if sample is None or not sample.group.accepted:
                self.find(f"sample {name} was never accepted", "the weights contain it and should not")

    def counts(self) -> Counts:
        counts: Counts = {"trained": len(self._trained)}
        for group in self.ledger.groups.values():
            accepted = group.samples if group.purpose is Purpose.TRAIN and group.accepted else ()
            if waiting := sum(sample not in self._trained for sample in accepted):
                reason = self._waits_for(group.step)
                counts[reason] = counts.get(reason, 0) + waiting
        return counts

    def _waits_for(self, step: int | None) -> str:
        plan = self.ledger.rules.plan
        if step is not None:
            return f"waiting for step {step} to be committed"
        if plan is not None and self.ledger.steps_committed >= plan.steps:
            return "left over after the last step"
        return f"waiting for the batch of step {self.ledger.steps_sealed}"


class Staleness(Check):
    """Number of versions by which a sample's oldest token was behind the weights that it trained."""

    name = "staleness"
    promise = "every sample within the bound of the run's settings"
    of_own_rollouts = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._samples: Counter[int] = Counter()

    def _on_step_committed(self, event: StepCommitted) -> None:
        plan = self.ledger.rules.plan
        batch = self.ledger.batches.get(event.step)
        for name in batch.samples if batch else ():
            sample = self.ledger.samples.get(name)
            if sample is None or sample.oldest is None:
                continue
            behind = event.parent_version - sample.oldest
            self._samples[behind] += 1
            recalled = sample.group.recalled
            most = recalled.bound if recalled is not None else None if plan is None else plan.staleness_bound
            if most is not None and not 0 <= behind <= most:
                wrong = f"sample {name} begins with v{sample.oldest} and trained v{event.parent_version}, "
                wrong += f"{behind} versions behind, and the bound is {most}"
                self.find(wrong, "it is further off policy than the settings allow")

    def counts(self) -> Counts:
        plan = self.ledger.rules.plan
        return {
            "at worst": max(self._samples, default=0),
            "allowed": None if plan is None else plan.staleness_bound,
            "samples by versions behind": {str(behind): n for behind, n in sorted(self._samples.items())},
        }
