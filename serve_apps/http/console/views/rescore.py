"""*Rescore*: a run beside its rollouts under another reward, filter or advantage estimator of ours."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from schemas.errors import BadQuery
from serve_apps.http.console.kept_answers import KeptAnswers
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.view import ROOT, ConsoleView, RunName, answered, documented
from slime_events.analysis.rescore.built_in import ESTIMATOR_NAMES, FILTER_NAMES, REWARDS, BuiltInChange
from slime_events.analysis.rescore.report import Report
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.settings import TrainSettings

RESCORE_S = 60.0
"""Seconds that a report may take."""
REWARDS_SQL = (
    "SELECT step, count(*) AS samples, avg(reward) AS reward FROM samples WHERE step IS NOT NULL "
    "GROUP BY step ORDER BY step"
)


class RescoreChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Names that a run can be rescored with."""

    rewards: Annotated[tuple[str, ...], doc("graders of ours")]
    filters: Annotated[tuple[str, ...], doc("filters of ours")]
    estimators: Annotated[tuple[str, ...], doc("advantage estimators")]
    run: Annotated[BuiltInChange, doc("names that the run has; a function of the user's by its path")]


class RescorePage(msgspec.Struct, frozen=True, kw_only=True):
    """The choices, and a result."""

    choices: RescoreChoices
    report: Annotated[Report | None, doc("what would differ; None while nothing is chosen")]
    same: Annotated[bool, doc("nothing would differ")]
    first_difference: Annotated[int | None, doc("the first step that would differ; None if none would")]
    command: Annotated[str, doc("command that gives the same, for a shell")]
    sql: Annotated[str, doc("query of the recorded rewards")]
    position: Annotated[int, doc("last position of the log that it includes")]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    kept = KeptAnswers[tuple[str, int, BuiltInChange], Report]()

    @router.get(f"{ROOT}/rescore", **documented(RescorePage, "Compare a run with its rescore"))
    async def rescored(
        run: RunName,
        reward: Annotated[str, Query(description=f"one of {', '.join(REWARDS)}; empty: as recorded")] = "",
        filter: Annotated[str, Query(description=f"one of {', '.join(FILTER_NAMES)}; empty: that of the run")] = "",
        estimator: Annotated[
            str, Query(description=f"one of {', '.join(ESTIMATOR_NAMES)}; empty: that of the run")
        ] = "",
    ) -> Response:
        chosen = BuiltInChange(reward=reward, filter=filter, estimator=estimator)
        async with runs.use(run) as of_run:
            opened, position = of_run.opened, await of_run.opened.log.position()
            report = None
            if chosen.flags:
                change, key = chosen.on(opened.settings), (run, position, chosen)
                report = await kept.get(key, lambda: _within_limit(rescore(opened, change, only_rules=True)))
            return answered(
                RescorePage(
                    choices=_choices(opened.settings),
                    report=report,
                    same=report is None or report.is_same,
                    first_difference=report.first_difference if report else None,
                    command=f"slime-events rescore {of_run.argument} {shlex.join(chosen.flags)}".rstrip(),
                    sql=REWARDS_SQL,
                    position=position,
                )
            )


async def _within_limit(computing: Coroutine[Any, Any, Report]) -> Report:
    """Raises BadQuery if it takes too long, and its errors."""
    try:
        async with asyncio.timeout(RESCORE_S):
            return await computing
    except TimeoutError:
        raise BadQuery(f"the rescore took longer than {RESCORE_S:.0f} s: use slime-events rescore for it") from None


def _choices(settings: TrainSettings) -> RescoreChoices:
    reward, algorithm = settings.reward, settings.algorithm
    return RescoreChoices(
        rewards=REWARDS,
        filters=FILTER_NAMES,
        estimators=ESTIMATOR_NAMES,
        run=BuiltInChange(
            reward=reward.custom_rm_path or reward.rm_type or "",
            filter=settings.rollout.dynamic_sampling_filter_path or "",
            estimator=algorithm.advantage_estimator,
        ),
    )


VIEW = ConsoleView("rescore", (RescorePage,), _add)
