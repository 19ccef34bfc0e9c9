"""*Metrics*: reward, length, accepted share, staleness and the trainer's figures by step."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, query_source

Numbers = tuple[float | None, ...]
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
    trained: Annotated[dict[str, Numbers], doc("p10, p50, p90 and mean over the samples of the step's batch [steps]")]
    all: Annotated[dict[str, Numbers], doc("the same over all completed samples [steps]")]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A figure by step."""

    name: Annotated[str, doc("name in `metrics` of the table `steps`, or of a share")]
    unit: Annotated[str, doc("unit; empty if it has none")]
    values: Annotated[Numbers, doc("its values [steps]")]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of a run. Every array has one value per step."""

    steps: Annotated[tuple[int, ...], doc("steps, ascending")]
    seconds: Annotated[Numbers, doc("time of the commit since the run's first sample [s]; null before the commit")]
    trained_tokens: Annotated[Numbers, doc("tokens of prompts and responses trained on up to the step")]
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


def metrics_of(bands: pa.Table, steps: pa.Table, argument: str, position: int) -> Metrics:
    """Return the curves from the rows of both queries. argument: names the run to a command."""
    by_step = {row["at_step"]: row for row in bands.to_pylist()}
    trained = {row["step"]: row for row in steps.to_pylist(maps_as_pydicts="lossy")}
    numbers = sorted(by_step.keys() | trained.keys())

    def column(name: str) -> Numbers:
        return tuple(by_step.get(step, {}).get(name) for step in numbers)

    figures = {step: row["metrics"] or {} for step, row in trained.items()}
    names = dict.fromkeys(name for values in figures.values() for name in values)
    seconds = tuple(trained.get(step, {}).get("at_second") for step in numbers)
    tokens, total = [], 0
    for step in numbers:
        total += trained.get(step, {}).get("tokens") or 0
        tokens.append(float(total))
    return Metrics(
        steps=tuple(numbers),
        seconds=seconds,
        trained_tokens=tuple(tokens),
        bands=tuple(
            Band(
                name=name,
                title=title,
                unit=unit,
                trained={figure: column(f"{name}_{figure}") for figure in _FIGURES},
                all={figure: column(f"{name}_{figure}_all") for figure in _FIGURES},
            )
            for name, title, unit in BANDS
        ),
        lines=(
            Line(name="accepted share", unit="", values=tuple(map(_share, column("accepted"), column("decided")))),
            Line(name="tokens per second", unit="tokens/s", values=tuple(_speed(trained.get(n, {})) for n in numbers)),
            *(
                Line(name=name, unit="", values=tuple(figures.get(step, {}).get(name) for step in numbers))
                for name in names
            ),
        ),
        source=query_source(argument, bands_sql(), position),
        steps_source=query_source(argument, STEPS_SQL, position),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _speed(step: dict[str, float | None]) -> float | None:
    return _share(step.get("tokens"), step.get("seconds"))


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/metrics", **documented(Metrics, "Get curves by step"))
    async def metrics(run: RunName) -> Response:
        async with runs.use(run) as opened:
            position, bands = await opened.rows(bands_sql())
            _, steps = await opened.rows(STEPS_SQL)
            return answered(metrics_of(bands, steps, opened.argument, position))


VIEW = ConsoleView("metrics", (Metrics,), _add)
