"""*Metrics*: reward, length, accepted share, staleness and the trainer's figures by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from serve_apps.http.console.curves import Axis, Curves, Floats, Indices, drawn
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, query_source

Numbers = tuple[float | None, ...]
POINTS, MOST_POINTS = 1000, 5000
"""Most points of a curve: by default, and of a request."""
BANDS = (
    ("reward", "reward", ""),
    ("tokens", "response length", "tokens"),
    ("staleness", "staleness", "versions"),
    ("seconds", "rollout time", "s"),
)
"""Columns of `samples` that are shown as bands: name, title, unit."""
_FIGURES = {
    "p10": "quantile_cont({}, 0.1)",
    "p50": "quantile_cont({}, 0.5)",
    "p90": "quantile_cont({}, 0.9)",
    "mean": "avg({})",
}
"""Figures of a band, and the SQL of each over a column."""
_AT = "coalesce(step, oldest_version)"
"""A sample that no step trains on counts at the step that its oldest weights were made for."""


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles and mean of a column of samples by step; null where no sample has a value."""

    name: Annotated[str, doc("column of `samples`")]
    title: Annotated[str, doc("what it is")]
    unit: Annotated[str, doc("unit; empty if it has none")]
    at: Annotated[tuple[int, ...] | None, doc("index in `steps` of each value; null if there is one per step")]
    trained: Annotated[dict[str, Numbers], doc("p10, p50, p90 and mean over the samples of the step's batch")]
    all: Annotated[dict[str, Numbers], doc("the same over all completed samples")]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A figure by step."""

    name: Annotated[str, doc("name in `metrics` of the table `steps`, or of a share")]
    unit: Annotated[str, doc("unit; empty if it has none")]
    at: Annotated[tuple[int, ...] | None, doc("index in `steps` of each value; null if there is one per step")]
    values: Annotated[Numbers, doc("its values")]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of a run. Each value is that of one step. If the window has more steps than `points`, each curve has those
    of its lowest and highest values in equal parts of the window.
    """

    total: Annotated[int, doc("number of steps in the window")]
    points: Annotated[int, doc("most points of a curve")]
    steps: Annotated[tuple[int, ...], doc("steps that have a point, ascending")]
    seconds: Annotated[Numbers, doc("time of the commit since the run's first sample [s]; null before the commit")]
    trained_tokens: Annotated[
        Numbers, doc("tokens of prompts and responses trained on up to the step; null before the commit")
    ]
    bands: Annotated[tuple[Band, ...], doc("quantiles and means over samples")]
    lines: Annotated[tuple[Line, ...], doc("figures of groups and of the trainer")]
    source: Annotated[AnswerSource, doc("query for the bands")]
    steps_source: Annotated[AnswerSource, doc("query for the trainer's figures")]


def bands_sql() -> str:
    """Return the query for all bands."""
    parts = [
        f"{sql.format(name)} {where} AS {name}_{figure}{suffix}"
        for name, _, _ in BANDS
        for figure, sql in _FIGURES.items()
        for suffix, where in (("", "FILTER (step IS NOT NULL)"), ("_all", ""))
    ]
    return (
        f"SELECT {_AT} AS at_step, count(DISTINCT group_id) FILTER (verdict = 'accepted') AS accepted, "
        "count(DISTINCT group_id) FILTER (verdict IS NOT NULL) AS decided, "
        + ", ".join(parts)
        + f" FROM samples WHERE purpose = 'train' AND status = 'completed' AND {_AT} IS NOT NULL"
        " GROUP BY ALL ORDER BY at_step"
    )


STEPS_SQL = (
    "SELECT step, tokens, seconds, epoch(committed) - (SELECT min(epoch(requested)) FROM samples) AS at_second, "
    "metrics FROM steps ORDER BY step"
)


class Window(NamedTuple):
    """A part of the curves to answer."""

    by: Annotated[Axis, doc("axis of the ends")] = "steps"
    low: Annotated[float | None, doc("lowest value on the axis; None: from the first step")] = None
    high: Annotated[float | None, doc("highest value on the axis; None: to the last step")] = None
    points: Annotated[int, doc("most points of a curve")] = POINTS


def metrics_of(curves: Curves, window: Window, argument: str, position: int) -> Metrics:
    """Return a window of the curves. argument: names the run to a command."""
    inside = curves.within(window.by, window.low, window.high)
    of_bands = {name: _arrays_of(curves, name) for name, _, _ in BANDS}
    of_lines = _lines_of(curves)
    chosen = {name: drawn(inside, list(arrays.values()), window.points) for name, arrays in of_bands.items()}
    chosen_lines = {name: drawn(inside, [values], window.points) for name, _, values in of_lines}
    steps = _united([*chosen.values(), *chosen_lines.values()]) if len(inside) > window.points else inside

    def at(own: Indices) -> tuple[int, ...] | None:
        return None if len(own) == len(steps) else tuple(np.searchsorted(steps, own).tolist())

    return Metrics(
        total=len(inside),
        points=window.points,
        steps=tuple(curves.steps[steps].tolist()),
        seconds=_numbers(curves.seconds[steps]),
        trained_tokens=_numbers(curves.trained_tokens[steps]),
        bands=tuple(
            Band(
                name=name,
                title=title,
                unit=unit,
                at=at(chosen[name]),
                trained={figure: _numbers(of_bands[name][figure][chosen[name]]) for figure in _FIGURES},
                all={figure: _numbers(of_bands[name][f"{figure}_all"][chosen[name]]) for figure in _FIGURES},
            )
            for name, title, unit in BANDS
        ),
        lines=tuple(
            Line(name=name, unit=unit, at=at(chosen_lines[name]), values=_numbers(values[chosen_lines[name]]))
            for name, unit, values in of_lines
        ),
        source=query_source(argument, bands_sql(), position),
        steps_source=query_source(argument, STEPS_SQL, position),
    )


def _arrays_of(curves: Curves, band: str) -> dict[str, Floats]:
    names = [f"{figure}{suffix}" for figure in _FIGURES for suffix in ("", "_all")]
    return {name: curves.columns[f"{band}_{name}"] for name in names}


def _lines_of(curves: Curves) -> list[tuple[str, str, Floats]]:
    """Return name, unit and values of each line."""
    accepted, decided = curves.columns["accepted"], curves.columns["decided"]
    share = np.divide(accepted, decided, out=np.full(len(decided), np.nan), where=decided > 0)
    return [
        ("accepted share", "", share),
        ("tokens per second", "tokens/s", curves.speed),
        *((name, "", values) for name, values in curves.metrics.items()),
    ]


def _united(chosen: Sequence[Indices]) -> Indices:
    return np.unique(np.concatenate(chosen))


def _numbers(values: Floats) -> Numbers:
    return tuple(None if value != value else value for value in values.tolist())


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/metrics", **documented(Metrics, "Get curves by step"))
    async def metrics(
        run: RunName,
        by: Annotated[Axis, Query(description="axis of from and to")] = "steps",
        low: Annotated[float | None, Query(alias="from", description="lowest value on the axis")] = None,
        high: Annotated[float | None, Query(alias="to", description="highest value on the axis")] = None,
        points: Annotated[int, Query(ge=100, le=MOST_POINTS, description="most points of a curve")] = POINTS,
    ) -> Response:
        async with runs.use(run) as opened:
            position, bands = await opened.kept_rows(bands_sql())
            _, steps = await opened.kept_rows(STEPS_SQL)
            curves = Curves.of(bands, steps)
            return answered(metrics_of(curves, Window(by, low, high, points), opened.argument, position))


VIEW = ConsoleView("metrics", (Metrics,), _add)
