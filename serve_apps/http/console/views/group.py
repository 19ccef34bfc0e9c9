"""*Group*: a prompt, its samples side by side, and the decision about them."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.rows import literal
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, show_source
from slime_events.analysis.rescore.filter_trial import NAMES, NONE, FilterTrial, try_filter
from slime_events.analysis.views.group import GroupView
from slime_events.analysis.views.read_records import read_group_view
from slime_events.model.lookup import Lookup
from slime_events.plugins.filters.dynamic_sampling import FILTERS
from slime_events.plugins.loader import name_of


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """A group."""

    group: Annotated[GroupView, doc("the group")]
    filters: Annotated[tuple[str, ...], doc("filters that can be tried on it; empty if the group has no decision")]
    source: Annotated[AnswerSource, doc("command and query for it")]


class TriedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Another filter on a group."""

    trial: Annotated[FilterTrial, doc("the decision that it would have given")]
    command: Annotated[
        str | None, doc("command that tries it on all groups, for a shell; None for `none`, which no command tries")
    ]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/groups/{{group:path}}", **documented(GroupPage, "Get a group"))
    async def group(
        run: RunName, group: Annotated[str, Path(description="id of the group, or a unique prefix")]
    ) -> Response:
        async with runs.use(run) as opened:
            view = await read_group_view(opened.opened.log, group)
            sql = f"SELECT * FROM samples WHERE group_id = {literal(view.group)} ORDER BY position, sample"
            source = show_source(opened, f"--group {shlex.quote(view.group)}", sql, await opened.opened.log.position())
            filters = NAMES if view.decision else ()
            return answered(GroupPage(group=view, filters=filters, source=source))

    @router.get(f"{ROOT}/filters/{{name}}/{{group:path}}", **documented(TriedFilter, "Try another filter on a group"))
    async def tried(
        run: RunName,
        name: Annotated[str, Path(description=f"one of {', '.join(NAMES)}", max_length=100)],
        group: Annotated[str, Path(description="id of the group, or a unique prefix")],
    ) -> Response:
        async with runs.use(run) as opened:
            record = await Lookup(opened.opened.log).group(group)
            trial = try_filter(record, name, opened.opened.settings)
            command = None
            if name != NONE:
                path = name_of(FILTERS[name])
                command = f"slime-events rescore {opened.argument} --dynamic-sampling-filter-path {path}"
            return answered(TriedFilter(trial=trial, command=command))


VIEW = ConsoleView("group", (GroupPage, TriedFilter), _add)
