"""*Lineage*: a weight version back to the lines of its prompts; and the versions that a sample, a group, a prompt line
or a grader's version touched, with the command that leaves these samples out.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from schemas.errors import RunNotFound
from schemas.rollouts import spans_text
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.rows import Value, columns_of
from serve_apps.http.console.touched import Subject, Touched, read_touched
from serve_apps.http.console.view import (
    ROOT,
    AnswerSource,
    ConsoleView,
    RunName,
    answered,
    command_source,
    documented,
    query_source,
)
from slime_events.analysis.lineage.lineage import Group, Kind, Lineage, LineageQuery, Sample
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.views.read_records import read_version_view
from slime_events.analysis.views.version import VersionView
from slime_events.model.ancestry import JoinedRun, VersionRange

VERSIONS_SQL = (
    "SELECT version, step, groups, samples, tokens, reward_mean, oldest_version, weights_digest FROM steps "
    "WHERE version IS NOT NULL ORDER BY version DESC"
)
_TRAINED = "count(step) AS trained, min(trained_version) AS first_version, max(trained_version) AS last_version"
SOURCES_SQL = (
    f"SELECT source, count(DISTINCT group_id) AS groups, count(*) AS samples, {_TRAINED} FROM samples "
    "WHERE purpose = 'train' AND source IS NOT NULL GROUP BY source ORDER BY source"
)
GRADERS_SQL = (
    f"SELECT r.grader, r.grader_digest, count(*) AS samples, count(r.failure) AS failed, {_TRAINED} "
    "FROM rewards r JOIN samples s USING (sample) GROUP BY ALL ORDER BY min(r.position)"
)


class VersionList(msgspec.Struct, frozen=True, kw_only=True):
    """Weight versions, and what may be asked about: files of prompts, and graders by the digest of their source."""

    columns: Annotated[dict[str, list[Value]], doc("versions that the run made, an array per column, the newest first")]
    sources: Annotated[dict[str, list[Value]], doc("sources of its training prompts, an array per column")]
    graders: Annotated[dict[str, list[Value]], doc("versions of its graders, an array per column")]
    source: Annotated[AnswerSource, doc("query for the versions")]
    sources_source: Annotated[AnswerSource, doc("query for the sources")]
    graders_source: Annotated[AnswerSource, doc("query for the graders")]


class TrainedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that a version was trained on."""

    sample: Annotated[str, doc("id of the sample")]
    reward: Annotated[float | None, doc("reward as graded; None if it is not in the log")]
    advantage: Annotated[float | None, doc("advantage of its first trained token; None if unknown")]
    made_by: Annotated[str, doc("weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]`")]


class TrainedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that a version was trained on."""

    group: Annotated[str, doc("id of the group")]
    run: Annotated[str, doc("run whose log has the prompt")]
    line: Annotated[str, doc("where it comes from: `train.jsonl:178`, `inbox:KEY of SENDER`")]
    subject: Annotated[str, doc("the same for a question about this source")]
    rollouts: Annotated[tuple[TrainedRollout, ...], doc("its samples in the batch")]


class VersionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A weight version."""

    version: Annotated[int, doc("number of the version")]
    newest: Annotated[int, doc("newest version of the run")]
    made_by: Annotated[str, doc("run that made it")]
    digest: Annotated[str | None, doc("digest of all tensors")]
    approximate_since: Annotated[int | None, doc("version from which a trainer resumed with an approximate optimizer")]
    view: Annotated[VersionView | None, doc("its origin and use; None if only the log of another run has it")]
    step: Annotated[int | None, doc("step that made it; None for the version that the ancestry begins with")]
    reward_mean: Annotated[float | None, doc("mean reward of the step's batch, as graded")]
    prompts: Annotated[tuple[TrainedPrompt, ...], doc("prompts of the step's batch, with their samples")]
    ancestors: Annotated[tuple[VersionRange, ...], doc("versions that it derives from, by the run that made them")]
    descendants: Annotated[tuple[VersionRange, ...], doc("versions that derive from it")]
    branches: Annotated[tuple[JoinedRun, ...], doc("runs that branched off from the run")]
    notes: Annotated[tuple[str, ...], doc("remarks, one sentence each")]
    source: Annotated[AnswerSource, doc("command and query for it")]


class TouchedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Versions that a sample, a group, a prompt source or a grader's version touched."""

    touched: Annotated[Touched, doc("the versions, the samples, and how to leave them out")]
    source: Annotated[AnswerSource, doc("command and query for it")]


def source_subject(group: Group) -> str:
    """Return a group's source as a question about it: `FILE:LINE`, or `inbox:KEY`."""
    return f"{group.source.path}:{group.source.line or group.source.key}".rstrip(":")


def _prompt(group: Group, samples: list[Sample]) -> TrainedPrompt:
    return TrainedPrompt(
        group=group.group,
        run=group.run,
        line=group.file_line,
        subject=source_subject(group),
        rollouts=tuple(
            TrainedRollout(
                sample=sample.sample,
                reward=sample.reward.value if sample.reward else None,
                advantage=sample.advantage.first if sample.advantage else None,
                made_by=spans_text(sample.origin.spans if sample.origin else sample.spans),
            )
            for sample in samples
        ),
    )


def version_page(answer: Lineage, view: VersionView | None, source: AnswerSource) -> VersionPage:
    """Return the page of the version that a lineage of one step is about."""
    number = int(answer.asked.value)
    own = next(version for version in answer.versions if version.version == number)
    step = answer.steps[0] if answer.steps else None
    samples: dict[str, list[Sample]] = {}
    for sample in answer.samples:
        samples.setdefault(sample.group, []).append(sample)
    return VersionPage(
        version=number,
        newest=answer.newest,
        made_by=own.run,
        digest=own.digest,
        approximate_since=own.approximate_since,
        view=view,
        step=step.step if step else None,
        reward_mean=step.mean_reward if step and step.rewards else None,
        prompts=tuple(_prompt(group, samples.get(group.group, [])) for group in answer.groups),
        ancestors=answer.ancestors,
        descendants=answer.descendants,
        branches=answer.branches,
        notes=answer.notes,
        source=source,
    )


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/versions", **documented(VersionList, "List the weight versions, sources and graders"))
    async def versions(run: RunName) -> Response:
        async with runs.use(run) as opened:
            queries = (VERSIONS_SQL, SOURCES_SQL, GRADERS_SQL)
            (position, committed), (_, sources), (_, graders) = [await opened.rows(sql) for sql in queries]
            of_versions, of_sources, of_graders = [query_source(opened.argument, sql, position) for sql in queries]
            return answered(
                VersionList(
                    columns=columns_of(committed),
                    sources=columns_of(sources),
                    graders=columns_of(graders),
                    source=of_versions,
                    sources_source=of_sources,
                    graders_source=of_graders,
                )
            )

    @router.get(f"{ROOT}/versions/{{version}}", **documented(VersionPage, "Get a weight version"))
    async def version(run: RunName, version: int) -> Response:
        async with runs.use(run) as opened:
            log = opened.opened.log
            answer = await lineage(opened.opened, LineageQuery(kind=Kind.VERSION, value=str(version)))
            view = None
            with contextlib.suppress(RunNotFound):  # a parent's log has it
                view = await read_version_view(log, version)
            sql = f"SELECT * FROM samples WHERE trained_version = {version} ORDER BY batch_index"
            source = command_source(opened, "lineage", f"--version {version}", sql, await log.position())
            return answered(version_page(answer, view, source))

    @router.get(f"{ROOT}/touched", **documented(TouchedPage, "Get what some samples touched"))
    async def touched(
        run: RunName,
        sample: Annotated[str, Query(description="id of a sample")] = "",
        group: Annotated[str, Query(description="id of a group")] = "",
        source: Annotated[str, Query(description="FILE, FILE:LINE, or inbox:KEY")] = "",
        grader: Annotated[str, Query(description="name or path of a grader")] = "",
        digest: Annotated[str, Query(description="sha256 (hex) of the grader's source")] = "",
    ) -> Response:
        subject = Subject.of(sample=sample, group=group, source=source, grader=grader, digest=digest)
        async with runs.use(run) as opened:
            answer = await read_touched(opened, subject)
            position = await opened.opened.log.position()
            if subject.kind is None:
                return answered(TouchedPage(touched=answer, source=query_source(opened.argument, answer.sql, position)))
            words = f"--{subject.kind.value} {shlex.quote(subject.value)}"
            by_lineage = command_source(opened, "lineage", words, answer.sql, position)
            return answered(TouchedPage(touched=answer, source=by_lineage))


VIEW = ConsoleView("lineage", (VersionList, VersionPage, TouchedPage), _add)
