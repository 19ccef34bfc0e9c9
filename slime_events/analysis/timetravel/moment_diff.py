"""`MomentDiff`: the difference between two moments of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict

from schemas.doc import doc
from schemas.event import Purpose
from slime_events.analysis.timetravel.moment import RunDecision
from slime_events.analysis.timetravel.moment_view import MomentView, OpenGroup
from slime_events.core.state.group import GroupPhase, SamplePhase
from slime_events.model.progress import NANO

_COMPARED = ("phase", "steps", "version", "published", "weights_digest", "waits_for")
T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """A value at the two moments; as JSON, a list of both."""

    was: Annotated[T, doc("value at the earlier moment")]
    now: Annotated[T, doc("value at the later moment")]


class PointInTime(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two moments."""

    position: Annotated[int, doc("position in the log")]
    at: Annotated[int, doc("UTC of its event [ns]")]


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an open group at one moment."""

    phase: Annotated[GroupPhase, doc("stage of the group")]
    samples: Annotated[dict[SamplePhase, int], doc("number of its samples by stage")]
    tokens: Annotated[int, doc("response tokens of all its samples so far")]


class GroupChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Open groups that differ."""

    opened: Annotated[dict[str, GroupPhase], doc("groups that are open at the later moment alone: stage there by id")]
    closed: Annotated[
        dict[str, str],
        doc(
            "groups that are open at the earlier moment alone: fate by id (`trained`, `rejected`, `evaluated`, or "
            "`trained or rejected` if the verdict is no longer known)"
        ),
    ]
    moved: Annotated[dict[str, Change[GroupProgress]], doc("groups that are open at both, with other progress, by id")]


class MomentDiff(msgspec.Struct, frozen=True, kw_only=True, rename={"start": "from", "stop": "to"}):
    """Difference between two moments: counters as the increase, all else as old and new value."""

    run: Annotated[str, doc("name of the run")]
    start: Annotated[PointInTime, doc("the earlier moment")]
    stop: Annotated[PointInTime, doc("the later moment")]
    events: Annotated[int, doc("number of events between them")]
    seconds: Annotated[float, doc("time between them [s]")]
    changed: Annotated[dict[str, Change[str | int | None]], doc("changed fields of `MomentView`, by name")]
    backpressure: Annotated[dict[str, Change[int | None]], doc("changed fields of `Backpressure`, by name")]
    counts: Annotated[dict[str, int], doc("increase of the totals that changed, by name")]
    rejections: Annotated[dict[str, int], doc("number of groups rejected between them, by cause")]
    cursors: Annotated[dict[str, Change[int | None]], doc("changed number of prompts drawn, by source")]
    engines: Annotated[
        dict[str, Change[int | None]], doc("changed weight version by engine; None if it has none or is gone")
    ]
    groups: Annotated[GroupChanges, doc("open groups that differ")]
    decisions: Annotated[tuple[RunDecision, ...], doc("decisions between them, the oldest first")]
    verdicts_left_out: Annotated[int, doc("number of verdicts between them that the later moment no longer has")]


def view_difference(moment: MomentView, other: MomentView) -> MomentDiff:
    """Return the difference between two moments of a run, given in either order."""
    was, now = sorted((moment, other), key=lambda view: view.position)
    counts = _added(asdict(was.counts), asdict(now.counts))
    decisions = tuple(decision for decision in now.decisions if decision.position > was.position)
    verdicts = counts.get("groups_accepted", 0) + counts.get("groups_rejected", 0)
    left_out = verdicts - sum(decision.type.startswith("group.") for decision in decisions)
    rejected = {decision.about for decision in decisions if decision.type == "group.rejected"}
    return MomentDiff(
        run=now.run,
        start=PointInTime(position=was.position, at=was.at),
        stop=PointInTime(position=now.position, at=now.at),
        events=now.position - was.position,
        seconds=(now.at - was.at) * NANO,
        changed=_changed(*({name: getattr(view, name) for name in _COMPARED} for view in (was, now))),
        backpressure=_changed(asdict(was.backpressure), asdict(now.backpressure)),
        counts=counts,
        rejections=_added(was.rejections, now.rejections),
        cursors=_changed(was.cursors, now.cursors),
        engines=_changed(_versions(was), _versions(now)),
        groups=_groups(was, now, rejected, left_out),
        decisions=decisions,
        verdicts_left_out=left_out,
    )


def _versions(view: MomentView) -> dict[str, int | None]:
    return {engine.engine: engine.version for engine in view.engines}


def _changed(was: Mapping[str, T | None], now: Mapping[str, T | None]) -> dict[str, Change[T | None]]:
    names = dict.fromkeys((*was, *now))
    return {name: Change(was.get(name), now.get(name)) for name in names if was.get(name) != now.get(name)}


def _added(was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: value - was.get(name, 0) for name, value in now.items() if value != was.get(name, 0)}


def _groups(was: MomentView, now: MomentView, rejected: set[str], left_out: int) -> GroupChanges:
    before, after = ({group.group: group for group in view.groups} for view in (was, now))

    def fate(group: OpenGroup) -> str:
        if group.purpose is not Purpose.TRAIN:
            return "evaluated"
        return "rejected" if group.group in rejected else "trained or rejected" if left_out else "trained"

    return GroupChanges(
        opened={name: group.phase for name, group in after.items() if name not in before},
        closed={name: fate(group) for name, group in before.items() if name not in after},
        moved={
            name: Change(_progress(before[name]), _progress(group))
            for name, group in after.items()
            if name in before and _progress(before[name]) != _progress(group)
        },
    )


def _progress(group: OpenGroup) -> GroupProgress:
    return GroupProgress(phase=group.phase, samples=group.samples, tokens=group.tokens)
