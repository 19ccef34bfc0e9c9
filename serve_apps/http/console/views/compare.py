"""*Compare*: the first difference of two served runs with the inputs of both sides, and their steps side by side."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from serve_apps.http.console.kept_answers import KeptAnswers
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.view import ConsoleView, answered, documented
from slime_events.analysis.compare.compare import compare
from slime_events.analysis.compare.comparison import Comparison

_FIGURES = ", ".join(
    f"avg({column}) AS {name}_mean, stddev_pop({column}) AS {name}_std, "
    f"quantile_cont({column}, [0.1, 0.5, 0.9]) AS {name}_quantiles"
    for column, name in (("reward", "reward"), ("tokens", "length"))
)
FIGURES_SQL = (
    f"SELECT step, count(*) AS samples, {_FIGURES} FROM samples WHERE step IS NOT NULL GROUP BY step ORDER BY step"
)


class ComparePage(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two runs."""

    comparison: Annotated[Comparison, doc("the first difference, and the steps")]
    a_position: Annotated[int, doc("last position of the log of run A that it includes")]
    b_position: Annotated[int, doc("last position of the log of run B that it includes")]
    command: Annotated[str, doc("command that gives the same, for a shell")]
    sql: Annotated[str, doc("query that gives the distributions of the steps, in each of the two runs")]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    kept = KeptAnswers[tuple[str, str, int, int], Comparison]()

    @router.get("/api/compare", **documented(ComparePage, "Compare two runs"))
    async def compared(
        a: Annotated[str, Query(description="name of a run in the list of runs")],
        b: Annotated[str, Query(description="name of the other run")],
    ) -> Response:
        async with runs.use(a) as of_a, runs.use(b) as of_b:
            positions = (await of_a.opened.log.position(), await of_b.opened.log.position())
            comparison = await kept.get((a, b, *positions), lambda: compare(of_a.opened, of_b.opened))
            return answered(
                ComparePage(
                    comparison=comparison,
                    a_position=positions[0],
                    b_position=positions[1],
                    command=f"slime-events compare {of_a.argument} {of_b.argument}",
                    sql=FIGURES_SQL,
                )
            )


VIEW = ConsoleView("compare", (ComparePage,), _add)
