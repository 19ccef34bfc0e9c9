"""Recorded rollouts of another run: each equals that run's, and its group is once in a step."""

import contextlib
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import RunNotFound
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.recorded import Recalled
from schemas.rollouts import Maker, Origin, RolloutCompleted, RolloutRequested, WeightSpan
from schemas.subjects import of_type
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.report import Counts
from slime_events.core.run.run_reader import open_run
from slime_events.core.tokens.trajectory import merge_spans
from storage.log import Readable


class RecordedEnd(NamedTuple):
    """End of a rollout in the log that holds it."""

    position: Annotated[int, doc("position of its rollout.completed")]
    digest: Annotated[str, doc("digest of tokens and log-probs, sha256 hex")]


RecordedEnds = Mapping[str, Mapping[str, RecordedEnd]]
"""Ends of rollouts by the argument that opens their run, and by sample."""
REUSED = (Maker.RECORDED, Maker.OUTSIDE)
"""Makers of rollouts that exist before their requests."""


class RecordedRollouts(Check):
    """Checks reused rollouts. ends: by the run that holds the rollouts; for other runs they are only counted."""

    name = "recalled"
    promise = "each recorded rollout with its digest and weights, its group once in a step"
    counted = ("groups", "rollouts", "of them not looked up")

    def __init__(self, ledger: Ledger, ends: RecordedEnds) -> None:
        super().__init__(ledger)
        self._ends = ends
        self._requested: dict[str, str] = {}

    @property
    def applies(self) -> bool:
        return self.ledger.recalls

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        group = self.ledger.groups.get(event.group)
        samples = group.recalled.samples if group is not None and group.recalled is not None else ()
        if event.recalls not in (samples[event.index : event.index + 1] or ("",)):
            wrong = f"it asks for recorded sample {event.recalls!r}, and its prompt has {list(samples)}"
            self.find(wrong, "another rollout replaces it")
        elif (event.maker in REUSED) != bool(event.recalls):
            wrong = f"its maker is {event.maker.value}, and it asks for recorded sample {event.recalls!r}"
            self.find(wrong, "another rollout replaces it")
        if event.recalls:
            self._requested[event.sample] = event.recalls

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
                self.find(wrong, "a rollout that was never recorded is trained on")
        elif recalled is not None or origin is not None:
            maker = "an engine's" if origin is None else "a recorded one"
            self.find(
                f"its rollout is {maker}, and its prompt names the opposite", "the maker of the rollout is unknown"
            )

    def _origin(self, event: RolloutCompleted, origin: Origin, recalled: Recalled) -> None:
        requested = event.rollout or event.sample
        expected = self._requested.get(requested, "") + event.sample.removeprefix(requested)
        if (origin.run, origin.sample) != (recalled.run, expected):
            wrong = f"it is sample {origin.sample} of {origin.run}, and {expected} of {recalled.run} was requested"
            self.find(wrong, "another rollout replaces it")
        number = recalled.common.number
        counted = merge_spans((), tuple(WeightSpan(s.start, s.end, number(s.version)) for s in origin.spans))
        if event.spans != counted or any(span.version < recalled.oldest for span in event.spans):
            wrong = "its weight versions are not those of the recorded rollout in this run's numbering"
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
    """Return the ends of rollouts in all runs that hold rollouts which this log reuses and that still exist."""
    paths = {
        event.source.path: None
        async for recorded in log.read(1, of_type(log.run, "prompt.submitted"))
        if isinstance(event := recorded.envelope.event, PromptSubmitted) and event.recalled
    }
    ends: dict[str, dict[str, RecordedEnd]] = {}
    for path in paths.keys() - {INBOX}:  # producers' rollouts are in this log, and have no digest
        with contextlib.suppress(RunNotFound):  # then its rollouts are counted as not looked up
            async with open_run(path) as opened:
                ends[path] = {
                    event.sample: RecordedEnd(recorded.position, event.digest)
                    async for recorded in opened.log.read(1, of_type(opened.run, "rollout.completed"))
                    if isinstance(event := recorded.envelope.event, RolloutCompleted)
                }
    return ends
