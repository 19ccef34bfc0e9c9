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
from slime_events.analysis.views.group import GroupView
from slime_events.analysis.views.read_records import read_group_view


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """A group."""

    group: Annotated[GroupView, doc("the group")]
    source: Annotated[AnswerSource, doc("command and query for it")]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/groups/{{group:path}}", **documented(GroupPage, "Get a group"))
    async def group(
        run: RunName, group: Annotated[str, Path(description="id of the group, or a unique prefix")]
    ) -> Response:
        async with runs.use(run) as opened:
            view = await read_group_view(opened.opened.log, group)
            sql = f"SELECT * FROM samples WHERE group_id = {literal(view.group)} ORDER BY position, sample"
            source = show_source(opened, f"--group {shlex.quote(view.group)}", sql, await opened.opened.log.position())
            return answered(GroupPage(group=view, source=source))


VIEW = ConsoleView("group", (GroupPage,), _add)
