"""`ArchivedRollouts`: the groups of a recorded run whose rollouts may be trained on again as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import DataError, InvalidValue
from schemas.ids import sample_id
from schemas.recorded import CommonVersion, Recalled
from schemas.rollouts import RolloutCompleted
from schemas.subjects import of_type
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.prompts.weight_ancestry import WeightLine, read_line


@dataclass(slots=True)
class RecordedGroup:
    """The completed rollouts of a group. samples: that were asked for; oldest, newest: weight versions over them, as
    that run numbers them.
    """

    samples: set[str] = field(default_factory=set)
    oldest: int | None = None
    newest: int | None = None

    def add(self, event: RolloutCompleted) -> None:
        """One more; a further sample of a rollout counts with it."""
        self.samples.add(event.rollout or event.sample)
        for span in event.spans:
            self.oldest = span.version if self.oldest is None else min(self.oldest, span.version)
            self.newest = span.version if self.newest is None else max(self.newest, span.version)

    def number(self, common: CommonVersion) -> int | None:
        """What its oldest weights count as here; None of a group without a token of any."""
        if self.oldest is None or self.newest is None:
            return None
        return min(common.number(self.oldest), common.number(self.newest))


@dataclass(frozen=True, slots=True)
class ArchivedRollouts:
    """run: that has them. line: its weights. groups: by the row of their prompt. samples: of a group that are taken,
    the first ones. bound: optimizer steps that the oldest weights may lie behind those that they train. ahead: steps
    that may pass from a draw to the step that trains it.
    """

    run: str
    line: WeightLine
    groups: Mapping[int, RecordedGroup]
    samples: int
    bound: int
    ahead: int

    def in_time(self, version: int, common: CommonVersion) -> list[int]:
        """Rows that will still be within the bound when they are trained, if they are drawn at `version`."""
        oldest = version + self.ahead - self.bound
        return [
            row
            for row, group in self.groups.items()
            if (number := group.number(common)) is not None and number >= oldest
        ]

    def recalled(self, row: int, group: str, common: CommonVersion) -> Recalled:
        """What the prompt of a row says of its rollouts; it has to be one that is in time. group: its name there."""
        oldest = self.groups[row].number(common)
        assert oldest is not None
        samples = tuple(sample_id(group, index) for index in range(self.samples))
        return Recalled(run=self.run, samples=samples, common=common, oldest=oldest, bound=self.bound)


async def archived_rollouts(
    opened: OpenedRun, rows: Mapping[str, int], *, samples: int, bound: int, ahead: int
) -> ArchivedRollouts:
    """rows: of the groups that may be drawn, by their names there. Left out are groups with fewer rollouts than
    `samples`, and those that were themselves recalled: what they are made of is drawn from the run that made it.
    Raises InvalidValue for a bound that nothing can be within, DataError where no group is left.
    """
    if bound < ahead:
        raise InvalidValue(
            f"--archive-max-staleness {bound} is too small: what is drawn now may be trained up to {ahead} steps "
            "later, so even rollouts of the newest weights could be too old by then"
        )
    found: dict[int, RecordedGroup] = {}
    async for recorded in opened.log.read(1, of_type(opened.run, "rollout.completed")):
        event = recorded.envelope.event
        if isinstance(event, RolloutCompleted) and event.group in rows and event.origin is None:
            found.setdefault(rows[event.group], RecordedGroup()).add(event)
    whole = {rows[group]: {sample_id(group, index) for index in range(samples)} for group in rows}
    groups = {row: found[row] for row in sorted(found) if whole[row] <= found[row].samples}
    if not groups:
        raise DataError(
            f"none of the {len(rows)} groups of {opened.where} that may be drawn has {samples} recorded rollouts of "
            "its own: give --n-samples-per-prompt as it was there, or less"
        )
    return ArchivedRollouts(opened.run, await read_line(opened.log), groups, samples, bound, ahead)
