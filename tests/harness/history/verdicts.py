"""`Verdicts`: one reward per completed sample, one verdict per group on all of them, evaluations as they came out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record
from tests.harness.history.story import Group, Story


class Verdicts:
    """Rewards and what is decided on them."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        if record.type.startswith("reward."):
            yield from self._reward(record)
        elif record.type.startswith("group."):
            yield from self._verdict(record)
        elif record.type == "eval.completed":
            yield from self._evaluation(record)

    def _reward(self, record: Record) -> Iterator[Finding]:
        name = record.event["sample"]
        sample = self._story.samples.get(name)
        if sample is None or not sample.completed:
            yield Finding(Kind.REWARD_EARLY, record.position, f"{record.type} of {name}, which is not completed")
        if sample is None:
            return
        if sample.outcome:
            yield Finding(Kind.REWARD_TWICE, record.position, f"{name} has its {sample.outcome} already")
            return
        sample.outcome, sample.reward = record.type, record.event.get("value")

    def _verdict(self, record: Record) -> Iterator[Finding]:
        event, name = record.event, record.event["group"]
        group = self._story.groups.get(name)
        if group is None:
            yield Finding(Kind.VERDICT_EARLY, record.position, f"{record.type} of {name}, which has no prompt")
            return
        if group.verdict:
            yield Finding(Kind.VERDICT_TWICE, record.position, f"{name} was {group.verdict} already")
            return
        accepted = record.type == "group.accepted"
        group.verdict = "accepted" if accepted else "rejected"
        if not accepted and event["cause"] not in ("filter", "filter_raised"):
            return
        waiting = [sample for sample in group.samples if not self._story.samples[sample].outcome]
        if waiting:
            yield Finding(
                Kind.VERDICT_EARLY, record.position, f"{name} was {group.verdict} before {waiting} had rewards"
            )
            return
        group.rewards = list(event.get("rewards", ()))
        if list(event.get("samples", ())) != group.samples or group.rewards != self._rewards(group):
            rewards = self._rewards(group)
            yield Finding(
                Kind.WRONG_VERDICT,
                record.position,
                f"{name} was {group.verdict} on {group.rewards}, its samples {group.samples} have {rewards}",
            )

    def _rewards(self, group: Group) -> list[float | None]:
        return [self._story.samples[name].reward for name in group.samples]

    def _evaluation(self, record: Record) -> Iterator[Finding]:
        event = record.event
        groups = [
            group
            for group in self._story.groups.values()
            if group.purpose == "eval" and (group.dataset, group.version) == (event["dataset"], event["version"])
        ]
        samples = [self._story.samples[name] for group in groups for name in group.samples]
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        what = f"evaluation {event['dataset']} of version {event['version']}"
        if any(not sample.outcome and not sample.failed for sample in samples):
            yield Finding(Kind.WRONG_EVALUATION, record.position, f"{what} was closed before all its samples had ended")
        elif (event["samples"], event["failed"]) != (len(samples), len(samples) - len(rewards)) or not math.isclose(
            event["mean"], sum(rewards) / max(1, len(samples)), rel_tol=1e-9, abs_tol=1e-12
        ):
            yield Finding(
                Kind.WRONG_EVALUATION,
                record.position,
                f"{what} says mean {event['mean']} of {event['samples']} samples, {event['failed']} of them failed; "
                f"the log holds {sum(rewards) / max(1, len(samples))} of {len(samples)}",
            )
