"""Rollouts: does every requested one have a fate, and only one?"""

from collections import Counter

from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested, RolloutSuspended
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Fate, SampleEntry

EngineEvent = RolloutProgressed | RolloutCompleted | RolloutFailed | RolloutSuspended


class Rollouts(Check):
    """Asked for, made attempt after attempt, ended once."""

    name = "rollouts"
    promise = "each requested one finished, running, suspended, failed or rejected with a reason"
    counted = ("requests",)

    def _on_group_rejected(self, event: GroupRejected) -> None:
        if not event.reason:
            self.find("it gives no reason", "work was dropped in silence")

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        self.seen["requests"] += 1
        group, known = self.ledger.groups.get(event.group), self.ledger.samples.get(event.sample)
        if group is None and event.purpose is not Purpose.CALL:
            self.find(f"no prompt of group {event.group} was submitted", "nobody knows what was asked")
        elif group is not None and group.decided:
            self.find(f"group {event.group} was decided at position {group.decided}", "an engine works for nothing")
        if known is None:
            return
        if event.attempt <= known.attempt:
            self.find(f"attempt {event.attempt} comes after attempt {known.attempt}", "one request is there twice")
        elif known.fate not in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"attempt {known.attempt} is {known.fate.value}, neither failed nor suspended"
            self.find(wrong, "two engines may make the same rollout")

    def _on_rollout_progressed(self, event: EngineEvent) -> None:
        requested = (isinstance(event, RolloutCompleted) and event.rollout) or event.sample
        known = self.ledger.samples.get(requested)
        if known is None:
            self.find("no rollout of this sample was requested", "it was made without a decision")
            return
        if known.fate is Fate.COMPLETED:
            wrong = f"the rollout had ended at position {known.ended}"
            self.find(wrong, "an engine that had lost the sample still wrote")
        elif event.attempt != known.attempt or known.fate in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"it is of attempt {event.attempt}, and attempt {known.attempt} is {known.fate.value}"
            self.find(wrong, "an engine that had lost the sample still wrote")
        if isinstance(event, RolloutFailed) and not event.message:
            self.find("it gives no reason", "work was dropped in silence")
        if isinstance(event, RolloutProgressed | RolloutCompleted) and known.max_version is not None:
            allowed = range(known.min_version, known.max_version + 1)
            if others := {span.version for span in event.spans if span.version not in allowed}:
                asked = f"v{known.min_version} to v{known.max_version}"
                wrong = f"weights v{min(others)} made some of its tokens, and {asked} were requested"
                self.find(wrong, "its evaluation is of other weights than it names")

    _on_rollout_completed = _on_rollout_failed = _on_rollout_suspended = _on_rollout_progressed

    def counts(self) -> Counts:
        fates = Counter(_fate(sample) for sample in self.ledger.samples.values())
        return self.seen | {"samples": len(self.ledger.samples)} | dict(sorted(fates.items()))


def _fate(sample: SampleEntry) -> str:
    if sample.fate is not Fate.COMPLETED and sample.group.decided:
        return "rejected with their group"
    return "waiting for an engine" if sample.fate is Fate.WAITING else sample.fate.value
