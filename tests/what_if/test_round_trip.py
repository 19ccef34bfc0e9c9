"""Runs whose true models are known: what is measured of them, and what is predicted from them."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.codec import encode
from schemas.errors import InvalidValue
from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.analysis.what_if.figures import figures_of
from slime_events.analysis.what_if.measurements import Measurements, measure
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.prediction import WhatIf
from slime_events.analysis.what_if.virtual_run import Simulated, simulate
from slime_events.analysis.what_if.what_if import predict
from slime_events.app.cli.main import run_command
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from tests import made
from tests.what_if import worlds

STEPS = 12
SETTINGS = worlds.settings(num_rollout=STEPS, rollout_batch_size=4, n_samples_per_prompt=3)


def world(seed: int = 0, **fields: Any) -> Measurements:
    """Return a world with random lengths, in which everything takes time."""
    chance = random.Random(seed)

    def group() -> Any:
        return worlds.group(*(chance.randint(5, 200) for _ in range(3)), prompt=chance.randint(5, 30), grading=0.01)

    pools = {version: [group() for _ in range(24)] for version in range(STEPS)}
    plain: dict[str, Any] = {
        "engines": worlds.speed(per_rollout=0.05, per_prompt=0.02, per_token=0.01, per_running=0.0004),
        "trainer": worlds.trainer(per_step=0.4, per_token=0.0005),
        "delays": replace(
            worlds.NOTHING, to_request=0.01, to_begin=0.02, to_seal=0.01, to_commit=0.03, to_activate=0.1
        ),
    }
    return worlds.measurements(pools, SETTINGS, STEPS, **(plain | fields))


def played(measured: Measurements, **changes: Any) -> Simulated:
    return simulate(measured, replace(Policy.of(SETTINGS), **changes), 0)


def predicted(measured: Measurements, **values: list[Any]) -> WhatIf:
    return predict(played(measured).run, SETTINGS, values)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_under_its_own_settings_has_its_own_figures(seed: int) -> None:
    view = predicted(world(seed))
    assert view.own.step_seconds == pytest.approx(view.seen.step_seconds, rel=0.03)
    assert view.own.engines_idle == pytest.approx(view.seen.engines_idle, abs=0.02)
    assert view.own.trainer_idle == pytest.approx(view.seen.trainer_idle, abs=0.02)
    assert view.own.graders_idle == pytest.approx(view.seen.graders_idle, abs=0.01)
    assert view.own.staleness_max == 0
    assert view.own.length_bias == pytest.approx(0.0, abs=1e-9)
    assert view.own.tokens_per_s == pytest.approx(view.seen.tokens_per_s, rel=0.03)


def test_the_models_of_a_run_are_found() -> None:
    measured = measure(played(world()).run, SETTINGS, ChunkTimes(64))
    assert measured.engines.per_token == pytest.approx(0.01, rel=0.1)
    assert measured.engines.per_running == pytest.approx(0.0004, rel=0.3)
    assert measured.engines.error < 0.02
    assert measured.trainer.per_step == pytest.approx(0.4, rel=0.01)
    assert measured.trainer.per_token == pytest.approx(0.0005, rel=0.01)
    assert measured.delays.to_request == pytest.approx(0.01, abs=1e-3)
    assert measured.delays.to_seal == pytest.approx(0.01, abs=1e-3)
    assert measured.delays.to_begin == pytest.approx(0.02, abs=1e-3)
    assert measured.delays.to_activate == pytest.approx(0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_staleness": 2},
        {"max_staleness": 1, "accept_order": "prompt"},
        {"rollout_batch_size": 2},
        {"rollout_batch_size": 6},
        {"over_sampling_batch_size": 8},
        {"rollout_num_engines": 2},
        {"max_staleness": 1, "update_weights_interval": 2},
    ],
    ids=lambda changes: " ".join(f"{name}={value}" for name, value in changes.items()),
)
def test_another_policy_is_predicted_from_a_run_that_did_not_use_it(changes: dict[str, Any]) -> None:
    """The truth is a second run of the same world under that policy."""
    truth = figures_of(played(world(), **changes).run, changes.get("rollout_num_engines", 1), 1)
    (prediction,) = predicted(world(), **{name: [value] for name, value in changes.items()}).predictions
    figures = prediction.figures
    assert prediction.changed == changes
    assert figures.step_seconds == pytest.approx(truth.step_seconds, rel=0.1)
    assert figures.staleness_mean == pytest.approx(truth.staleness_mean, abs=0.15)
    assert figures.staleness_max == truth.staleness_max
    assert figures.engines_idle == pytest.approx(truth.engines_idle, abs=0.1)  # bursts hide what a prompt costs
    assert figures.trainer_idle == pytest.approx(truth.trainer_idle, abs=0.06)


def test_all_combinations_are_predicted_and_equal_calls_give_equal_predictions() -> None:
    values = {"max_staleness": [0, 1], "rollout_batch_size": [4, 2]}
    view = predicted(world(), **values)
    assert [prediction.changed for prediction in view.predictions] == [
        {"rollout_batch_size": 2},
        {"max_staleness": 1},
        {"max_staleness": 1, "rollout_batch_size": 2},
    ]
    assert predicted(world(), **values) == view


def test_what_the_run_has_not_shown_is_said() -> None:
    more, fewer = predicted(world(), max_staleness=[2], rollout_batch_size=[2]).predictions[0], predicted(world())
    assert more.beyond
    assert fewer.predictions == ()
    assert fewer.unknown


@pytest.mark.parametrize(
    "values",
    [
        {"max_staleness": [-1]},
        {"rollout_batch_size": [0]},
        {"rollout_num_engines": [0]},
        {"accept_order": ["random"]},
        {"over_sampling_batch_size": [3]},
        {"update_weights_interval": [3]},
        {"chunk_tokens": [32]},
        {"max_staleness": list(range(9)), "rollout_batch_size": list(range(1, 9))},
    ],
)
def test_impossible_values_are_refused(values: dict[str, list[Any]]) -> None:
    measured = world()
    if "chunk_tokens" in values:  # no rollout is as long as a chunk
        pools = {version: [worlds.group(5, 6, 7)] for version in range(STEPS)}
        measured = worlds.measurements(pools, SETTINGS, STEPS)
    run = played(measured).run
    with pytest.raises(InvalidValue):
        predict(run, SETTINGS, values)


@pytest.mark.parametrize(
    "of",
    [
        made.settings(SETTINGS, rollout={"partial_rollout": True}),
        made.settings(SETTINGS, rollout={"agents": True}),
        made.settings(SETTINGS, rollout={"rollout_function_path": "m:f"}),
        made.settings(SETTINGS, data={"prompt_data": None}),
        made.settings(SETTINGS, reward={"group_rm": True}),
        made.settings(SETTINGS, run={"tinker": "127.0.0.1:1"}),
    ],
)
def test_runs_that_are_not_simulated_are_refused(of: TrainSettings) -> None:
    with pytest.raises(InvalidValue):
        predict(played(world()).run, of, {})


def test_a_run_with_few_steps_is_refused() -> None:
    with pytest.raises(InvalidValue):
        predict(simulate(worlds.measurements(world().training, SETTINGS, 5), Policy.of(SETTINGS), 0).run, SETTINGS, {})


def archive(folder: Path) -> str:
    """Archive a simulated run, with its settings; return the URL."""
    events = played(world()).events
    started = replace(events[0].envelope, event=made.started(SETTINGS))
    envelopes = [started, *(recorded.envelope for recorded in events[1:])]
    records = [Recorded(n, item.subject, item, encode(item)) for n, item in enumerate(envelopes, 1)]
    return made.archived(folder, records)


def test_the_json_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = archive(tmp_path)
    assert run_command(["what-if", url, "--max-staleness", "0", "1", "--engines", "2", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert [prediction["changed"] for prediction in view["predictions"]] == [
        {"rollout_num_engines": 2},
        {"max_staleness": 1, "rollout_num_engines": 2},
    ]
    assert view["seen"]["step_seconds"] == pytest.approx(view["own"]["step_seconds"], rel=0.03)
    assert run_command(["what-if", url, "--max-staleness", "1"]) == 0
    assert "--max-staleness 1" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"rm_workers": 2}, {"rollout_num_engines": 2}])
def test_a_number_of_processes_that_was_not_seen_is_named(changes: dict[str, int]) -> None:
    view = predicted(world(), **{name: [1, value] for name, value in changes.items()})
    (prediction,) = view.predictions
    (sentence,) = (sentence for sentence in prediction.beyond if "1 were seen" in sentence)
    assert sentence.startswith("2 ")


def test_rollouts_that_wait_for_room_at_the_engine_are_no_delay() -> None:
    of = replace(SETTINGS, engine=replace(SETTINGS.engine, sglang_server_concurrency=2))
    view = predict(played(dataclasses.replace(world(), settings=of)).run, of, {})
    assert view.seen.step_seconds > 1.5 * predicted(world()).seen.step_seconds
    assert view.own.step_seconds == pytest.approx(view.seen.step_seconds, rel=0.05)
    assert view.delays.between < 0.01
