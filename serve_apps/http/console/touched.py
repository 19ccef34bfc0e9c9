"""`Touched`: the weight versions that some samples touched, and the command that trains again without them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.errors import BadQuery, RunNotFound
from schemas.ids import INBOX
from serve_apps.http.console.open_runs import OpenRun
from serve_apps.http.console.rows import literal
from slime_events.analysis.lineage.lineage import Group, Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.resolve import SourceLine, lineage
from slime_events.model.ancestry import VersionRange

MOST_SAMPLES = 500
"""Most samples that are listed."""


class Subject(NamedTuple):
    """Subject of a question."""

    kind: Annotated[Kind | None, doc("kind of the question to the lineage; None: a grader")]
    value: Annotated[str, doc("id of a sample or group, a source, or the name of a grader")]
    digest: Annotated[str, doc("sha256 (hex) of the grader's source")] = ""

    @classmethod
    def of(cls, *, sample: str, group: str, source: str, grader: str, digest: str) -> Subject:
        """Return what a request asks about. Raises BadQuery unless it is exactly one."""
        subjects = [
            cls(kind, value, digest if kind is None else "")
            for kind, value in ((Kind.SAMPLE, sample), (Kind.GROUP, group), (Kind.SOURCE, source), (None, grader))
            if value
        ]
        if len(subjects) != 1:
            raise BadQuery(f"the request names {len(subjects)} subjects: give one of sample, group, source, grader")
        return subjects[0]

    @property
    def title(self) -> str:
        """Kind and name, for a heading."""
        return f"{self.kind.value} {self.value}" if self.kind else f"grader {self.value} {self.digest[:12]}".strip()


class TouchedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was trained on some of the samples."""

    version: Annotated[int | None, doc("number of the version; None if the step is not committed")]
    step: Annotated[int, doc("step that trained on them")]
    samples: Annotated[int, doc("number of them in its batch")]
    groups: Annotated[int, doc("number of their groups in its batch")]


class TouchedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One of the samples."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[str, doc("id of its group")]
    run: Annotated[str, doc("run whose log has it")]
    reward: Annotated[float | None, doc("reward as graded; None if it has none")]
    normalised: Annotated[float | None, doc("reward that is trained on; None if it is in no batch")]
    step: Annotated[int | None, doc("step that trained on it; None if none did")]


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that some samples touched."""

    title: Annotated[str, doc("subject of the question")]
    samples: Annotated[int, doc("number of its samples")]
    trained: Annotated[int, doc("number of them in a batch")]
    versions: Annotated[tuple[TouchedVersion, ...], doc("versions that were trained on them, the oldest first")]
    derived: Annotated[tuple[VersionRange, ...], doc("versions that derive from these, by the run that made them")]
    listed: Annotated[tuple[TouchedSample, ...], doc("the first of the samples; those that were trained on first")]
    drop: Annotated[str, doc("query that selects the samples, for `retrain --drop`")]
    commands: Annotated[
        tuple[str, ...],
        doc("commands that train again without them, one per run whose log has them; none if no step trained on them"),
    ]
    notes: Annotated[tuple[str, ...], doc("remarks, one sentence each")]
    sql: Annotated[str, doc("query that gives the samples with their versions")]


async def read_touched(opened: OpenRun, subject: Subject) -> Touched:
    """Return what the samples of a subject touched. Raises RunNotFound if there is none, and the log's errors."""
    if subject.kind is None:
        return await _of_grader(opened, subject)
    answer = await lineage(opened.opened, LineageQuery(kind=subject.kind, value=subject.value))
    samples = [
        TouchedSample(
            sample=sample.sample,
            group=sample.group,
            run=sample.run,
            reward=sample.reward.value if sample.reward else None,
            normalised=sample.normalised,
            step=sample.step,
        )
        for sample in answer.samples
    ]
    committed = {step.step for step in answer.steps if step.committed_at is not None}
    drop = drop_of(subject, answer.groups)
    return _touched(opened, subject, samples, committed, drop, answer)


async def _of_grader(opened: OpenRun, subject: Subject) -> Touched:
    """Return what the samples touched that a version of a grader graded. Reads the tables of the run."""
    of_grader = f"grader = {literal(subject.value)} AND grader_digest = {literal(subject.digest)}"
    graded = f"SELECT sample FROM rewards WHERE {of_grader}"
    sql = (
        'SELECT sample, group_id AS "group", run, reward, normalised_reward AS normalised, step, trained_version '
        f"FROM samples WHERE sample IN ({graded}) ORDER BY step NULLS LAST, position, sample"
    )
    _, table = await opened.rows(sql)
    if not table.num_rows:
        raise RunNotFound(
            f"no grader {subject.value!r} with digest {subject.digest!r} graded a sample of run {opened.opened.run}. "
            f"To list its graders, run `slime-events query {opened.argument} "
            '"SELECT DISTINCT grader, grader_digest FROM rewards"`'
        )
    rows = table.to_pylist()
    samples = [TouchedSample(**{name: row[name] for name in TouchedSample.__struct_fields__}) for row in rows]
    committed = {row["step"] for row in rows if row["trained_version"] is not None}
    answer = None
    if committed:
        first = LineageQuery(kind=Kind.VERSION, value=str(min(committed) + 1))
        answer = await lineage(opened.opened, first)
    drop = f"{graded} AND sample IN (SELECT sample FROM trained)"
    return _touched(opened, subject, samples, committed, drop, answer)


def drop_of(subject: Subject, groups: Sequence[Group]) -> str:
    """Return the query that selects a subject's samples. groups: those of its answer, which name their sources."""
    if subject.kind is Kind.SAMPLE:
        return f"SELECT sample FROM samples WHERE sample = {literal(subject.value)}"
    if subject.kind is Kind.GROUP:
        return f"SELECT group_id FROM prompts WHERE group_id = {literal(subject.value)}"
    line = SourceLine.of(subject.value)
    paths = ", ".join(literal(path) for path in sorted({group.source.path for group in groups}))
    condition = f"source IN ({paths})"
    if line.line is not None:
        condition += (
            f" AND key = {literal(line.line)}" if line.path == INBOX else f" AND source_line = {int(line.line)}"
        )
    return f"SELECT group_id FROM prompts WHERE {condition}"


def _touched(
    opened: OpenRun,
    subject: Subject,
    samples: list[TouchedSample],
    committed: set[int],
    drop: str,
    answer: Lineage | None,
) -> Touched:
    trained = sorted((sample for sample in samples if sample.step is not None), key=lambda sample: sample.step or 0)
    derived: tuple[VersionRange, ...] = ()
    notes: tuple[str, ...] = ()
    if answer is not None:
        derived = answer.samples_descendants if subject.kind else answer.descendants
        notes = answer.notes
    if subject.kind is Kind.SAMPLE or subject.kind is None:
        sql = f"SELECT * FROM samples WHERE sample IN ({drop})"
    else:
        sql = f"SELECT * FROM samples WHERE group_id IN ({drop})"
    rest = [sample for sample in samples if sample.step is None]
    return Touched(
        title=subject.title,
        samples=len(samples),
        trained=len(trained),
        versions=tuple(_versions(trained, committed)),
        derived=derived,
        listed=tuple([*trained, *rest][:MOST_SAMPLES]),
        drop=drop,
        commands=_commands(opened, trained, drop, answer),
        notes=notes,
        sql=sql,
    )


def _versions(trained: Sequence[TouchedSample], committed: set[int]) -> Iterable[TouchedVersion]:
    by_step: dict[int, list[TouchedSample]] = {}
    for sample in trained:
        by_step.setdefault(sample.step or 0, []).append(sample)
    for step, samples in by_step.items():
        yield TouchedVersion(
            version=step + 1 if step in committed else None,
            step=step,
            samples=len(samples),
            groups=len({sample.group for sample in samples}),
        )


def _commands(opened: OpenRun, trained: Sequence[TouchedSample], drop: str, answer: Lineage | None) -> tuple[str, ...]:
    """Return a command for each run whose log has trained samples: an ancestor is named by its folder or URL."""
    places = {run.run: shlex.quote(run.where) for run in answer.runs} if answer else {}
    places[opened.opened.run] = opened.argument
    named = dict.fromkeys(sample.run for sample in trained)
    return tuple(
        f"slime-events retrain {places.get(run, shlex.quote(run))} --branch NAME --drop {shlex.quote(drop)}"
        for run in named
    )
