"""Recorded rollouts of another run: does each equal what that run holds, and is its group once in a step?"""

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.recorded import Recalled
from schemas.rollouts import Origin, RolloutCompleted, RolloutRequested, WeightSpan
from schemas.subjects import of_type
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.run.run_reader import open_run
from slime_events.core.trajectory import merge_spans
from storage.log import Readable


class RecordedEnd(NamedTuple):
    """The end of a rollout in the log that has it."""

    position: int
    digest: str


RecordedEnds = Mapping[str, Mapping[str, RecordedEnd]]
"""By the argument that opens the other run, and by sample there."""


class RecordedRollouts(Check):
    """ends: by the run that holds the rollouts. Rollouts of a run that is not among them are counted."""

    name = "recalled"
    promise = "each recorded rollout with its digest and weights, its group once in a step"
    counted = ("groups", "rollouts", "of them not looked up")

    def __init__(self, ledger: Ledger, ends: RecordedEnds) -> None:
        super().__init__(ledger)
        self._ends = ends
        self._asked: dict[str, str] = {}

    @property
    def applies(self) -> bool:
        return self.ledger.recalls

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        group = self.ledger.groups.get(event.group)
        known = group.recalled.samples if group is not None and group.recalled is not None else ()
        if event.recalls not in (known[event.index : event.index + 1] or ("",)):
            wrong = f"it asks for recorded sample {event.recalls!r}, and its prompt has {list(known)}"
            self.find(wrong, "another rollout takes its place")
        if event.recalls:
            self._asked[event.sample] = event.recalls

    def _on_rollout_completed(self, event: RolloutCompleted) -> None:
        group, origin = self.ledger.groups.get(event.group), event.origin
        recalled = None if group is None else group.recalled
        if group is not None and recalled is not None and origin is not None:
            self.seen["rollouts"] += 1
            self._origin(event, origin, recalled)
            path = group.recorded[0]
            self.seen["of them not looked up"] += path not in self._ends
            if path in self._ends and self._ends[path].get(origin.sample) != (origin.position, event.digest):
                wrong = f"{path} has no rollout {origin.sample} with its digest at position {origin.position}"
                self.find(wrong, "it trains on what was never recorded")
        elif recalled is not None or origin is not None:
            made = "is an engine's" if origin is None else "is a recorded one"
            self.find(f"its rollout {made}, and its prompt names the other", "nobody knows what made it")

    def _origin(self, event: RolloutCompleted, origin: Origin, recalled: Recalled) -> None:
        requested = event.rollout or event.sample
        named = self._asked.get(requested, "") + event.sample.removeprefix(requested)
        if (origin.run, origin.sample) != (recalled.run, named):
            wrong = f"it is sample {origin.sample} of {origin.run}, and {named} of {recalled.run} was requested"
            self.find(wrong, "another rollout takes its place")
        number = recalled.common.number
        counted = merge_spans((), tuple(WeightSpan(s.start, s.end, number(s.version)) for s in origin.spans))
        if event.spans != counted or any(span.version < recalled.oldest for span in event.spans):
            wrong = "its weight versions are not those of the recorded rollout as they count here"
            self.find(wrong, "its staleness is wrong")

    def _on_batch_sealed(self, event: BatchSealed) -> None:
        first: dict[tuple[str, str], str] = {}
        for name in event.groups:
            group = self.ledger.groups.get(name)
            if group is None or group.recalled is None or group.recorded[0] == INBOX:
                continue
            if (other := first.setdefault(group.recorded, name)) != name:
                wrong = f"groups {other} and {name} are both the recorded group {group.recorded[1]}"
                self.find(wrong, "the same rollouts train twice in one step")

    def counts(self) -> Counts:
        return self.seen | {"groups": sum(group.recalled is not None for group in self.ledger.groups.values())}


async def recorded_ends(log: Readable) -> RecordedEnds:
    """The ends of all runs that hold rollouts which this log reuses, where those runs still exist."""
    paths = {
        event.source.path: None
        async for recorded in log.read(1, of_type(log.run, "prompt.submitted"))
        if isinstance(event := recorded.envelope.event, PromptSubmitted) and event.recalled
    }
    ends: dict[str, dict[str, RecordedEnd]] = {}
    for path in paths.keys() - {INBOX}:  # what producers have offered lies in this log, and has no digest
        with contextlib.suppress(RunNotFound):  # its rollouts are counted as not looked up
            async with open_run(path) as opened:
                ends[path] = {
                    event.sample: RecordedEnd(recorded.position, event.digest)
                    async for recorded in opened.log.read(1, of_type(opened.run, "rollout.completed"))
                    if isinstance(event := recorded.envelope.event, RolloutCompleted)
                }
    return ends
