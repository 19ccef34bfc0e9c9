"""Predictions against real conductors, workers, graders and trainers, which use none of the code that predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.analysis.what_if.figures import Figures, figures_of
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.prediction import Prediction
from slime_events.analysis.what_if.what_if import predict
from slime_events.model import Run
from tests.what_if.paced_runs import Pace, paced, paced_run
from tests.what_if.virtual_time import run_in_virtual_time

PACE = Pace(token=0.02, running=0.001, chunk=0.004, step=0.5, load=0.05)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "staleness 1": {"max_staleness": 1},
    "staleness 2": {"max_staleness": 2},
    "over-sampling 6": {"over_sampling_batch_size": 6},
    "both": {"over_sampling_batch_size": 6, "max_staleness": 1},
    "batch 6": {"rollout_batch_size": 6},
    "prompt order": {"max_staleness": 1, "accept_order": "prompt"},
    "2 engines": {"engines": 2},
    "chunk 4": {"chunk": 4},
    "chunk 8": {"chunk": 8},
    "chunk 16": {"chunk": 16},
}
SOAK = pytest.mark.soak
Runs = Callable[[str], tuple[Run, ChunkTimes]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return a run by the name of its settings. Each is made once."""
    made: dict[str, tuple[Run, ChunkTimes]] = {}

    def run(name: str) -> tuple[Run, ChunkTimes]:
        if name not in made:
            made[name] = new_run(tmp_path_factory.mktemp("paced") / "run", name)
        return made[name]

    return run


def new_run(folder: Path, name: str) -> tuple[Run, ChunkTimes]:
    made: tuple[Run, ChunkTimes] = run_in_virtual_time(
        paced_run(folder, paced(**SETTINGS[name]), PACE), pytest.MonkeyPatch()
    )
    return made


def seen(runs: Runs, name: str) -> Figures:
    return figures_of(runs(name)[0], paced(**SETTINGS[name]).engine.replicas, 1)


def predicted(runs: Runs, base: str, name: str) -> Prediction:
    (run, chunks), of, wanted = runs(base), paced(**SETTINGS[base]), paced(**SETTINGS[name])
    changes = Policy.of(wanted).changed(Policy.of(of))
    (prediction,) = predict(run, of, {key: [value] for key, value in changes.items()}, chunks=chunks).predictions
    return prediction


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("chunk 4", "chunk 16"),
        pytest.param("chunk 16", "chunk 4", marks=SOAK),
        pytest.param("chunk 4", "chunk 8", marks=SOAK),
        pytest.param("chunk 4", "plain", marks=SOAK),
        pytest.param("chunk 8", "chunk 4", marks=SOAK),
        pytest.param("chunk 8", "chunk 16", marks=SOAK),
        pytest.param("chunk 16", "chunk 8", marks=SOAK),
        pytest.param("chunk 16", "plain", marks=SOAK),
    ],
)
def test_other_chunks_are_predicted(runs: Runs, base: str, name: str) -> None:
    truth, prediction = seen(runs, name), predicted(runs, base, name)
    assert prediction.figures.step_seconds == pytest.approx(truth.step_seconds, rel=0.03)
    assert prediction.step_seconds_range is not None
    least, most = prediction.step_seconds_range
    assert 0.99 * least <= truth.step_seconds <= 1.01 * most
    assert most / least < 1.15


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("plain", "staleness 1"),
        pytest.param("plain", "staleness 2", marks=SOAK),
        pytest.param("plain", "over-sampling 6", marks=SOAK),
        pytest.param("plain", "both", marks=SOAK),
        pytest.param("plain", "batch 6", marks=SOAK),
        pytest.param("plain", "prompt order", marks=SOAK),
        pytest.param("plain", "2 engines", marks=SOAK),
        pytest.param("plain", "chunk 4", marks=SOAK),
        pytest.param("staleness 1", "plain", marks=SOAK),
        pytest.param("2 engines", "plain", marks=SOAK),
    ],
)
def test_other_settings_are_predicted(runs: Runs, base: str, name: str) -> None:
    truth, figures = seen(runs, name), predicted(runs, base, name).figures
    assert figures.step_seconds == pytest.approx(truth.step_seconds, rel=0.1)
    assert figures.trainer_idle == pytest.approx(truth.trainer_idle, abs=0.05)
    assert figures.engines_idle == pytest.approx(truth.engines_idle, abs=0.1)
    assert figures.staleness_mean == pytest.approx(truth.staleness_mean, abs=0.05)


@SOAK
def test_the_same_settings_give_the_same_times_again(runs: Runs, tmp_path: Path) -> None:
    again = figures_of(new_run(tmp_path / "run", "plain")[0], 1, 1)
    assert again.step_seconds == pytest.approx(seen(runs, "plain").step_seconds, rel=1e-6)
