"""Rollouts: does every one that was asked for have a fate, and only one?"""

from __future__ import annotations

from collections import Counter

from schemas.groups import GroupRejected
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
)
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Fate, Ledger, SampleFacts
from storage.log import Recorded

Said = RolloutProgressed | RolloutCompleted | RolloutFailed | RolloutSuspended


class Rollouts(Check):
    """Asked for, made attempt after attempt, ended once."""

    name = "rollouts"
    promise = "each requested one finished, running, suspended, failed or rejected with a reason"
    hears = (
        RolloutRequested,
        RolloutProgressed,
        RolloutCompleted,
        RolloutFailed,
        RolloutSuspended,
        GroupRejected,
    )

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._requests = 0

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if isinstance(event, RolloutRequested):
            self._requests += 1
            self._requested(recorded, event)
        elif isinstance(event, GroupRejected):
            if not event.reason:
                self.find(recorded, "it gives no reason", "work was dropped in silence")
        elif isinstance(event, Said):
            self._said(recorded, event)

    def _requested(self, recorded: Recorded, event: RolloutRequested) -> None:
        group, known = self.ledger.groups.get(event.group), self.ledger.samples.get(event.sample)
        if group is None:
            self.find(recorded, f"no prompt of group {event.group} was submitted", "nobody knows what was asked")
        elif group.decided:
            wrong = f"group {event.group} was decided at position {group.decided}"
            self.find(recorded, wrong, "an engine works for nothing")
        if known is None:
            return
        if event.attempt <= known.attempt:
            wrong = f"attempt {event.attempt} comes after attempt {known.attempt}"
            self.find(recorded, wrong, "one request is there twice")
        elif known.fate not in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"attempt {known.attempt} is {known.fate.value}, neither failed nor suspended"
            self.find(recorded, wrong, "two engines may make the same rollout")

    def _said(self, recorded: Recorded, event: Said) -> None:
        asked_for = (isinstance(event, RolloutCompleted) and event.rollout) or event.sample
        known = self.ledger.samples.get(asked_for)
        if known is None:
            self.find(recorded, "no rollout of this sample was requested", "it was made without a decision")
            return
        if known.fate is Fate.COMPLETED:
            wrong = f"the rollout had ended at position {known.ended}"
            self.find(recorded, wrong, "an engine that had lost the sample still wrote")
        elif event.attempt != known.attempt or known.fate in (Fate.FAILED, Fate.SUSPENDED):
            wrong = f"attempt {event.attempt} speaks, and attempt {known.attempt} is {known.fate.value}"
            self.find(recorded, wrong, "an engine that had lost the sample still wrote")
        if isinstance(event, RolloutFailed) and not event.message:
            self.find(recorded, "it gives no reason", "work was dropped in silence")
        if isinstance(event, RolloutProgressed | RolloutCompleted) and known.max_version is not None:
            allowed = range(known.min_version, known.max_version + 1)
            if others := {span.version for span in event.spans if span.version not in allowed}:
                asked = f"v{known.min_version} to v{known.max_version}"
                wrong = f"weights v{min(others)} made some of its tokens, and {asked} were asked for"
                self.find(recorded, wrong, "its evaluation is of other weights than it says")

    def counts(self) -> Counts:
        fates = Counter(_fate(sample) for sample in self.ledger.samples.values())
        return {"requests": self._requests, "samples": len(self.ledger.samples), **dict(sorted(fates.items()))}


def _fate(sample: SampleFacts) -> str:
    if sample.fate is not Fate.COMPLETED and sample.group.decided:
        return "rejected with their group"
    return "waiting for an engine" if sample.fate is Fate.WAITING else sample.fate.value
