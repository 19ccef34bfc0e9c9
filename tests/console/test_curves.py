"""Long curves are drawn by few steps: each with its exact figures, and the lowest and highest of each part."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from serve_apps.http.console.curves import Axis, Curves, Floats, drawn
from serve_apps.http.console.views.metrics import BANDS, Metrics, Window, metrics_of

STEPS, MOST = 3000, 200
FIGURES = ("p10", "p50", "p90", "mean")


def curves(count: int = STEPS) -> Curves:
    """Curves with gaps, with one spike in each direction, and with steps that are not committed at their end."""
    random.seed(7)
    names = [f"{name}_{figure}{suffix}" for name, *_ in BANDS for figure in FIGURES for suffix in ("", "_all")]
    rows: dict[str, list[Any]] = {"at_step": list(range(count)), "accepted": [1] * count, "decided": [2] * count}
    rows |= {name: [random.random() if random.random() > 0.1 else None for _ in range(count)] for name in names}
    rows["reward_mean"][1234], rows["reward_p10"][2345], rows["decided"][7] = 99.5, -99.5, 0
    metrics = [[("loss", 1 / (n + 1)), *([("kl", float(n))] if n % 3 else [])] for n in range(count)]
    steps = pa.table(
        {
            "step": list(range(count)), "tokens": [10 if n < count - 5 else None for n in range(count)],
            "seconds": [2.0] * count, "at_second": [float(3 * n) if n < count - 5 else None for n in range(count)],
            "metrics": pa.array(metrics, pa.map_(pa.string(), pa.float64())),
        }
    )  # fmt: skip
    return Curves.of(pa.table(rows), steps)


LONG = curves()


def test_each_row_has_its_place() -> None:
    assert LONG.trained_tokens[:2].tolist() == [10, 20]
    assert np.isnan(LONG.trained_tokens[-5:]).all()
    assert LONG.speed[0] == 5.0
    assert LONG.metrics["loss"][3] == 0.25
    assert np.isnan(LONG.metrics["kl"][[0, 3]]).all()
    assert LONG.metrics["kl"][[1, 2]].tolist() == [1.0, 2.0]
    empty = Curves.of(pa.table({"at_step": pa.array([], pa.int64())}), pa.table(
        {name: pa.array([], pa.float64()) for name in ("step", "tokens", "seconds", "at_second")}
        | {"metrics": pa.array([], pa.map_(pa.string(), pa.float64()))}
    ))  # fmt: skip
    assert len(empty.steps) == 0


def test_bands_and_steps_may_have_other_rows() -> None:
    steps = pa.table(
        {
            "step": [1, 5], "tokens": [10, 20], "seconds": [1.0, 0.0], "at_second": [1.0, 2.0],
            "metrics": pa.array([[("loss", 1.0)], None], pa.map_(pa.string(), pa.float64())),
        }
    )  # fmt: skip
    made = Curves.of(pa.table({"at_step": [0, 5], "x": [0.5, None]}), steps)
    assert made.steps.tolist() == [0, 1, 5]
    assert _listed(made.columns["x"]) == [0.5, None, None]
    assert _listed(made.trained_tokens) == [None, 10, 30]
    assert _listed(made.speed) == [None, 10, None]
    assert _listed(made.metrics["loss"]) == [None, 1.0, None]


def _listed(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


@pytest.mark.parametrize("most", [20, MOST, 999])
def test_each_part_keeps_its_lowest_and_highest(most: int) -> None:
    window, shown = np.arange(500, 2900), [LONG.columns["reward_mean"], LONG.columns["reward_p10"]]
    kept = drawn(window, shown, most)
    assert len(kept) <= most
    assert {500, 1234, 2345, 2899} <= set(kept.tolist())
    parts = (most - 2) // 4
    for part in np.split(window, [-(-n * len(window) // parts) for n in range(1, parts)]):
        inside = np.intersect1d(part, kept)
        for values in shown:
            for extreme in (np.nanmin, np.nanmax):
                assert extreme(values[inside]) == extreme(values[part])


def test_a_curve_without_values_keeps_the_ends() -> None:
    assert drawn(np.arange(50), [np.full(50, np.nan)], 10).tolist() == [0, 49]


def _answer(**words: Any) -> Metrics:
    return metrics_of(LONG, Window(**words), "run", 1)


def test_each_point_is_exact() -> None:
    whole, few = _answer(points=STEPS), _answer(points=MOST)
    assert (whole.total, few.total, whole.steps) == (STEPS, STEPS, tuple(range(STEPS)))
    assert len(msgspec.json.encode(few)) < len(msgspec.json.encode(whole)) / 3
    for full, band in zip(whole.bands, few.bands, strict=True):
        assert full.at is None
        assert band.at is not None
        steps = [few.steps[index] for index in band.at]
        assert len(steps) <= MOST
        for kind, of in ((band.trained, full.trained), (band.all, full.all)):
            assert {name: tuple(of[name][step] for step in steps) for name in of} == kind
    for line, of_line in zip(few.lines, whole.lines, strict=True):
        steps = [few.steps[index] for index in line.at or range(len(few.steps))]
        assert line.values == tuple(of_line.values[step] for step in steps)
        assert len(steps) <= MOST
    assert few.seconds == tuple(whole.seconds[step] for step in few.steps)
    assert 99.5 in few.bands[0].trained["mean"]
    assert -99.5 in few.bands[0].trained["p10"]


@pytest.mark.parametrize(
    ("by", "low", "high", "first", "last"),
    [
        ("steps", 10, 20, 10, 20),
        ("steps", None, 3, 0, 3),
        ("trained_tokens", 15, 45, 1, 3),
        ("seconds", 8979, None, 2993, 2994),
    ],
)
def test_a_window_has_every_step(by: Axis, low: float | None, high: float | None, first: int, last: int) -> None:
    answer = _answer(by=by, low=low, high=high)
    assert answer.steps == tuple(range(first, last + 1))
    assert answer.total == len(answer.steps)
    assert all(band.at is None for band in answer.bands)
