"""`Life`: a run starts once, and after its end nothing new is decided until it is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record
from tests.harness.history.story import Story

DECISIONS = ("rollout.requested", "group.accepted", "group.rejected", "batch.sealed", "eval.completed")
"""Events of the conductor, which ends the run. Other roles may still record work that was under way at the end."""


class Life:
    """Starts, ends and resumptions."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._started = False
        self._incarnation = 0

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        if not self._started and record.type != "run.started":
            yield Finding(Kind.NOT_STARTED, record.position, f"{record.type} is before run.started")
            self._started = True  # reported once
        if self._story.over and self._is_decision(record):
            yield Finding(Kind.AFTER_THE_END, record.position, f"{record.type} is after {self._story.over}")
        handler = getattr(self, "_" + record.type.replace(".", "_"), None)
        if handler is not None:
            yield from handler(record)

    def _is_decision(self, record: Record) -> bool:
        if record.type == "prompt.submitted":
            return record.event["source"]["path"] != "inbox"  # a sender from outside may not know of the end
        return record.type in DECISIONS or record.type == "run.finished"

    def _run_started(self, record: Record) -> Iterator[Finding]:
        self._started = True
        if self._story.bound is None:
            self._story.bound = staleness_bound(record.event["settings"])
        if branched := record.event.get("branched"):
            story, version = self._story, branched["version"]
            story.first = story.steps = version
            story.follows = branched.get("follows", False)
            story.weights[version] = branched["weights_digest"]
            story.cursors, story.passed = dict(branched.get("cursors", {})), branched.get("passed", {})
        return iter(())

    def _run_resumed(self, record: Record) -> Iterator[Finding]:
        self._story.over = ""
        self._incarnation += 1
        if record.event["incarnation"] != self._incarnation:
            yield Finding(
                Kind.WRONG_INCARNATION,
                record.position,
                f"incarnation {record.event['incarnation']} is resumption number {self._incarnation}",
            )
            self._incarnation = record.event["incarnation"]

    def _run_finished(self, record: Record) -> Iterator[Finding]:
        story, event = self._story, record.event
        story.over = "run.finished"
        if event["steps"] != story.steps or event["events"] != story.events - 1:
            yield Finding(
                Kind.WRONG_COUNT,
                record.position,
                f"run.finished counts {event['steps']} steps and {event['events']} events, the log holds "
                f"{story.steps} and {story.events - 1} before it",
            )
        open_steps = sorted(step for step in story.batches if step + 1 not in story.weights)
        if event["reason"] == "all_steps" and open_steps:
            yield Finding(Kind.NOT_TRAINED, record.position, f"the run is done, steps {open_steps} are not committed")
        if event["reason"] == "all_steps" and story.unstored:
            detail = f"the run is done, versions {sorted(story.unstored)} are not stored"
            yield Finding(Kind.WRONG_WEIGHTS, record.position, detail)

    def _run_failed(self, record: Record) -> Iterator[Finding]:
        self._story.over = "run.failed"
        return iter(())


def staleness_bound(settings: dict[str, Any]) -> int | None:
    """Versions that a sample may be behind, by the run's settings; None where they do not say."""
    rollout, trainer = settings.get("rollout"), settings.get("trainer")
    if not rollout or not trainer:
        return None
    bound = int(rollout["max_staleness"]) + int(trainer["update_weights_interval"]) - 1
    draw = rollout.get("over_sampling_batch_size")
    surplus = 0 if draw is None else -(-(draw - 1) // rollout["rollout_batch_size"])
    return bound + surplus
