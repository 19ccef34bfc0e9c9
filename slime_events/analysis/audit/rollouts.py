"""Rollouts: every requested one has exactly one fate."""

from collections import Counter

from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested, RolloutSuspended
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Fate, SampleEntry
from slime_events.analysis.audit.report import Counts

EngineEvent = RolloutProgressed | RolloutCompleted | RolloutFailed | RolloutSuspended


class Rollouts(Check):
    """Requested, made attempt after attempt, ended once."""

    name = "rollouts"
    promise = "each requested one finished, running, suspended, failed or rejected with a reason"
    counted = ("requests",)

    def _on_group_rejected(self, event: GroupRejected) -> None:
        if not event.reason:
            self.find("it gives no reason", "work was dropped without a trace")

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        self.seen["requests"] += 1
        group, sample = self.ledger.groups.get(event.group), self.ledger.samples.get(event.sample)
        if group is None and event.purpose is not Purpose.CALL:
            self.find(f"no prompt of group {event.group} was submitted", "its prompt is unknown")
        elif group is not None and group.decided:
            self.find(
                f"group {event.group} was already decided at position {group.decided}", "an engine works for nothing"
            )
        if sample is None:
            return
        if event.attempt <= sample.attempt:
            self.find(f"attempt {event.attempt} comes after attempt {sample.attempt}", "one request is stored twice")
        elif sample.fate not in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"attempt {sample.attempt} is {sample.fate.value}, neither failed nor suspended"
            self.find(wrong, "two engines may make the same rollout")

    def _on_rollout_progressed(self, event: EngineEvent) -> None:
        requested = (isinstance(event, RolloutCompleted) and event.rollout) or event.sample
        sample = self.ledger.samples.get(requested)
        if sample is None:
            self.find("no rollout of this sample was requested", "it was made without a decision")
            return
        if sample.fate is Fate.COMPLETED:
            wrong = f"the rollout had ended at position {sample.ended}"
            self.find(wrong, "an engine without a claim on the sample still wrote")
        elif event.attempt != sample.attempt or sample.fate in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"it belongs to attempt {event.attempt}, and attempt {sample.attempt} is {sample.fate.value}"
            self.find(wrong, "an engine without a claim on the sample still wrote")
        if isinstance(event, RolloutFailed) and not event.message:
            self.find("it gives no reason", "work was dropped without a trace")
        if isinstance(event, RolloutProgressed | RolloutCompleted) and sample.max_version is not None:
            allowed = range(sample.min_version, sample.max_version + 1)
            if others := {span.version for span in event.spans if span.version not in allowed}:
                bounds = f"v{sample.min_version} to v{sample.max_version}"
                wrong = f"weights v{min(others)} made some of its tokens, and {bounds} was requested"
                self.find(wrong, "its evaluation used weights that it does not name")

    _on_rollout_completed = _on_rollout_failed = _on_rollout_suspended = _on_rollout_progressed

    def counts(self) -> Counts:
        fates = Counter(_fate(sample) for sample in self.ledger.samples.values())
        return self.seen | {"samples": len(self.ledger.samples)} | dict(sorted(fates.items()))


def _fate(sample: SampleEntry) -> str:
    if sample.fate is not Fate.COMPLETED and sample.group.decided:
        return "rejected with their group"
    return "waiting for an engine" if sample.fate is Fate.WAITING else sample.fate.value
