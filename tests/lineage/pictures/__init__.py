"""Lineages made up for their pictures, one SVG file each: `python -m tests.lineage.pictures` renews them.

Look at a renewed one before it is kept: nothing else tells whether boxes lie on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.event import Purpose
from schemas.prompts import Source
from schemas.rollouts import Origin, WeightSpan
from schemas.sessions import SealReason
from schemas.turns import RootReason
from slime_events.analysis.lineage.lineage import (
    Advantage,
    Group,
    Kind,
    Lineage,
    LineageQuery,
    Mask,
    Reward,
    Sample,
    Step,
    Version,
)
from slime_events.model.agent_session import AgentSession, AgentTurn
from slime_events.model.agent_session import Path as TurnPath
from slime_events.model.ancestry import JoinedRun, VersionRange

FILES = Path(__file__).parent
RUN, PARENT = "own", "parent"


def group(
    name: str, samples: Sequence[Sample], *, step: int | None = None, run: str = RUN, path: str = "a/one.jsonl"
) -> Group:
    """A group of that file."""
    return Group(
        group=name, run=run, dataset="train", purpose=Purpose.TRAIN, source=Source(path=path, line=7), label=None,
        text=f"<{name}> " + "x" * 400, submitted_at=0, samples=tuple(sample.sample for sample in samples), step=step,
    )  # fmt: skip


def samples(group_name: str, rewards: Sequence[float | None], **fields: Any) -> list[Sample]:
    """One for each reward; none where that is None."""
    return [
        Sample(
            sample=f"{group_name}-s{index}", group=group_name, run=RUN, length=4, made_by=(3,),
            spans=(WeightSpan(0, 4, 3),), reward=None if value is None else reward(value), **fields,
        )
        for index, value in enumerate(rewards)
    ]  # fmt: skip


def reward(value: float | None, failure: str | None = None) -> Reward:
    """Return a reward as a grader records it."""
    return Reward(grader="exact", grader_digest="", value=value, failure=failure)


def step(number: int, groups: Sequence[Group], rewards: Sequence[float], *, committed: bool = True) -> Step:
    """One with these groups."""
    return Step(
        step=number, run=RUN, parent=number, version=number + 1, groups=tuple(each.group for each in groups),
        samples=tuple(name for each in groups for name in each.samples), rewards=tuple(rewards), oldest_version=0,
        batch_digest=f"{number:064x}"[::-1], sealed_at=1, committed_at=2 if committed else None,
    )  # fmt: skip


def many_steps(count: int, each: int = 1) -> Lineage:
    """Build `count` steps of a group of `each` samples, as the ancestry of the newest version."""
    members = [samples(f"g{number}", [number / count] * each, step=number) for number in range(count)]
    groups = [group(f"g{number}", of, step=number) for number, of in enumerate(members)]
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.VERSION, value=str(count), depth=0),
        newest=count,
        runs=(JoinedRun(run=RUN, where="here"),),
        line=(VersionRange(run=RUN, first=0, last=count),),
        versions=(Version(version=count, run=RUN, digest="d"),),
        ancestors=(VersionRange(run=RUN, first=0, last=count - 1),),
        steps=tuple(step(n, [groups[n]], [n / count] * each) for n in reversed(range(count))),
        groups=tuple(reversed(groups)),
        samples=tuple(sample for of in members for sample in of),
    )


def many_samples(count: int) -> Lineage:
    """Build `count` samples of one step, each of a group of its own."""
    members = [samples(f"g{number}", [number / 8 - 1.0], step=0, trained_into=1) for number in range(count)]
    groups = [group(f"g{number}", of, step=0, path=f"/data/{number % 3}.jsonl") for number, of in enumerate(members)]
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.STEP, value="0"),
        newest=5,
        runs=(JoinedRun(run=RUN, where="here"),),
        line=(VersionRange(run=RUN, first=0, last=5),),
        versions=(Version(version=2, run=RUN), Version(version=0, run=RUN, digest="d0")),
        ancestors=(VersionRange(run=RUN, first=0, last=0),),
        descendants=(VersionRange(run=RUN, first=4, last=4),),
        steps=(step(0, groups, [0.0] * count),),
        groups=tuple(groups),
        samples=tuple(sample for of in members for sample in of),
    )


def few_samples() -> Lineage:
    """Build samples of several states: one under way, a failed and an ungraded one, one of another run's."""
    kept = JoinedRun(run=RUN, where="here", parent=PARENT, version=2)
    mask, advantage = Mask(tokens=10, trained=7, ranges=((0, 7),)), Advantage(estimator="grpo", first=0.12345, last=0.1)
    later = (VersionRange(run=RUN, first=6, last=8),)
    spans = (WeightSpan(0, 1, 2), WeightSpan(6, 1000, 3))
    whole = Sample(
        sample="g0-s0", group="g0", run=RUN, length=1000, spans=spans, made_by=(2, 3), mask=mask, reward=reward(-0.5),
        advantage=advantage, step=4, trained_into=5, descendants=later,
    )  # fmt: skip
    failed = Sample(
        sample=f"{'n' * 20}-s1", group="g0", run=RUN, length=0, reward=reward(None, "timeout: <slow> & late\x1b")
    )
    earlier = Sample(
        sample=f"{'n' * 21}-s0", group="g1", run=PARENT, length=3, spans=(WeightSpan(0, 3, 4),), made_by=(1, 4), step=7,
        origin=Origin(run="elsewhere", sample="there-s3", position=1, spans=()),
        mask=Mask(tokens=3, trained=3, ranges=((0, 3),)),
    )  # fmt: skip
    session = AgentSession(
        session="g0-s0.0", sample="g0-s0", group="g0", run=RUN, attempt=0, source="team", opened_at=0,
        sealed=SealReason.REWARD, paths=(TurnPath(sample="g0-s0", turns=(0, 1)),),
        turns=(
            AgentTurn(turn=0, dialect="chat", client="c/1", root=RootReason.FIRST),
            AgentTurn(turn=1, dialect="chat"),
        ),
    )  # fmt: skip
    other = AgentSession(session="g9-s0.1", sample="g9-s0", group="g9", run=RUN, attempt=1, source="ci", opened_at=0)
    groups = (
        group("g1", [earlier], run=RUN, path="other/of-the-name.jsonl"),
        group("g1", [earlier], run=PARENT, path="s3://bucket/a-very-long-name-of-a-file-of-prompts.parquet"),
        group("g0", [whole, failed], step=4),
    )
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.GROUP, value="g0"),
        newest=9,
        runs=(kept, JoinedRun(run=PARENT, where="there")),
        line=(VersionRange(run=PARENT, first=0, last=2), VersionRange(run=RUN, first=3, last=9)),
        versions=(Version(version=5, run=RUN, digest="d5"),),
        steps=(step(4, groups[2:], [-0.5]), step(7, groups[1:2], [], committed=False)),
        groups=groups,
        samples=(whole, failed, earlier),
        sessions=(session, other, other),
    )


def several_groups() -> Lineage:
    """A step of groups of several samples, of three files one below the other."""
    rewards = ([1.0, 0.5, None, 3.0, 0.25], [None] * 5, [2.0] * 4, [0.5] * 10)
    members = [samples(f"g{number}", of, step=8, trained_into=9) for number, of in enumerate(rewards)]
    paths = ("one.jsonl", "two.jsonl", "three.jsonl", "one.jsonl")
    groups = [group(f"g{n}", of, step=8 if n else None, path=paths[n]) for n, of in enumerate(members)]
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.SOURCE, value="one.jsonl"),
        newest=241,
        runs=(JoinedRun(run=RUN, where="here"),),
        line=(VersionRange(run=PARENT, first=0, last=100), VersionRange(run=RUN, first=101, last=241)),
        versions=(Version(version=9, run=RUN, digest="d9"), Version(version=3, run=PARENT, digest="d3")),
        steps=(step(8, groups, [1.0]),),
        groups=tuple(groups),
        samples=tuple(sample for of in members for sample in of),
    )


def a_beginning() -> Lineage:
    """The version that a run begins with, which no step has made and no sample has seen."""
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.VERSION, value="0"),
        newest=0,
        runs=(JoinedRun(run=RUN, where="here"),),
        line=(VersionRange(run=RUN, first=0, last=0),),
        versions=(Version(version=0, run=RUN, digest="d0"),),
    )


def before_any_version() -> Lineage:
    """A sample of a run that has no weights yet."""
    (sample,) = samples("g0", [None])
    return Lineage(
        run=RUN,
        asked=LineageQuery(kind=Kind.SAMPLE, value=sample.sample),
        newest=-1,
        runs=(JoinedRun(run=RUN, where="here"),),
        groups=(group("g0", [sample]),),
        samples=(sample,),
    )


ANSWERS = {
    "before_any_version": before_any_version(),
    "a_beginning": a_beginning(),
    "few_samples": few_samples(),
    "several_groups": several_groups(),
    "sixteen_rows": many_samples(16),
    "seventeen_rows": many_samples(17),
    "one_sample": many_samples(1),
    "steps": many_steps(2, each=9),
}
