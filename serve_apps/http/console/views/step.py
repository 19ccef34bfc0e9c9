"""*Step*: the list of steps, and one step with its batch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.rows import Value, columns_of
from serve_apps.http.console.view import (
    ROOT,
    AnswerSource,
    ConsoleView,
    RunName,
    answered,
    documented,
    query_source,
    show_source,
)
from slime_events.analysis.lineage.step_loss import StepLoss, view_step_loss
from slime_events.analysis.views.step import StepView, view_step
from slime_events.model.lookup import Lookup

STEPS_SQL = (
    "SELECT step, version, groups, samples, tokens, reward_mean, staleness, seconds, weights_digest FROM steps "
    "ORDER BY step"
)


class StepList(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a run."""

    columns: Annotated[dict[str, list[Value]], doc("an array per column [steps]")]
    source: Annotated[AnswerSource, doc("query for them")]


class StepPage(msgspec.Struct, frozen=True, kw_only=True):
    """A step."""

    step: Annotated[StepView, doc("the step")]
    loss: Annotated[StepLoss, doc("how much each sample counts in its loss, and the settings of packing")]
    source: Annotated[AnswerSource, doc("command and query for it")]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/steps", **documented(StepList, "List the steps"))
    async def steps(run: RunName) -> Response:
        async with runs.use(run) as opened:
            position, rows = await opened.rows(STEPS_SQL)
            return answered(
                StepList(columns=columns_of(rows), source=query_source(opened.argument, STEPS_SQL, position))
            )

    @router.get(f"{ROOT}/steps/{{step}}", **documented(StepPage, "Get a step"))
    async def step(run: RunName, step: int) -> Response:
        async with runs.use(run) as opened:
            lookup = Lookup(opened.opened.log)
            record = await lookup.step(step)
            loss = view_step_loss(lookup.run, record, opened.opened.settings, opened.opened.fetch)
            sql = f"SELECT * FROM samples WHERE step = {step} ORDER BY batch_index"
            source = show_source(opened, f"--step {step}", sql, await opened.opened.log.position())
            return answered(StepPage(step=view_step(lookup.run, record), loss=loss, source=source))


VIEW = ConsoleView("step", (StepList, StepPage), _add)
