"""The seconds of steps and the trainer's idle share, from a log alone."""

from __future__ import annotations

import random

import msgspec
import pytest

from schemas.checkpoints import CheckpointSaved
from schemas.envelope import enclose
from schemas.event import Event
from schemas.runs import RunResumed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated
from schemas.workers import WorkerJoined
from slime_events.analysis.views.read_run import view_run_now
from slime_events.app.cli.commands.show_run import run_text
from slime_events.model import Run
from slime_events.model.progress import Progress
from storage.log import Recorded
from tests import made
from tests.cli.small_run import RUN, SECOND, START, events
from tests.conductor.driver import Driver, make_plan


def test_the_trainer_is_idle_where_it_neither_trains_nor_saves() -> None:
    """Commits at 10, 20 and 30 s, each after 4 s of work; a checkpoint of 2 s after the second of them."""
    driver = Driver(make_plan(steps=3, checkpoint_every=2))
    driver.play(random.Random(0))
    progress, records, now = Progress("drive"), Run("drive"), SECOND
    for recorded in driver.log:
        event = recorded.envelope.event
        if isinstance(event, StepCommitted):
            now = (event.step + 1) * 10 * SECOND
            event = msgspec.structs.replace(event, seconds={"train": 3.0, "weights": 1.0})
        elif isinstance(event, CheckpointSaved):
            event = msgspec.structs.replace(event, seconds=2.0)
        envelope = msgspec.structs.replace(recorded.envelope, event=event, at=now)
        moved = Recorded(recorded.position, recorded.subject, envelope, recorded.data)
        progress.apply(moved)
        records.apply(moved)
    assert [line.idle for line in progress.figures.steps][1:] == pytest.approx([0.6, 0.4])
    assert progress.trainer_idle == progress.summary()["trainer_idle"] == pytest.approx(0.5)
    assert "idle 50.0% of the time from its first commit to its last" in run_text(
        view_run_now(records, progress, progress.figures.steps)
    )


def _at(timed: list[tuple[float, Event]]) -> Progress:
    """Return a run's progress, with each event at its second."""
    progress = Progress(RUN)
    for position, (second, event) in enumerate(timed, 1):
        envelope = enclose(RUN, event, at=START + round(second * SECOND), producer="test")
        progress.apply(Recorded(position, envelope.subject, envelope, b"x"))
    return progress


def _resumed_a_day_later(killed: float = 13.0) -> list[tuple[float, Event]]:
    """Return timed events: begun at 0 s, ready at 10 s, step 0 committed at 12 s, then killed; continued a day later,
    ready 20 s after that, step 1 committed 1 s after that. The trainer reports 0.3 s of work each time.
    """
    day, timed = 86_400.0, list[tuple[float, Event]]()
    for event in events():
        if isinstance(event, WeightsActivated) and event.version == 0:
            timed.append((10.0, event))
        elif not any(isinstance(other, StepCommitted) for _, other in timed):
            timed.append((12.0 if isinstance(event, StepCommitted) else timed[-1][0] if timed else 0.0, event))
        elif not any(isinstance(other, RunResumed) for _, other in timed):
            timed += [
                (killed, event),
                (day, made.resumed()),
                (day + 15.0, WorkerJoined(worker="trainer-2", role="trainer", pid=2)),
                (day + 20.0, made.activated(1, engine="engine-2", lag=0.2)),
            ]
        else:
            timed.append((day + 21.0, event))
    return timed


def test_neither_starting_nor_the_time_without_a_launcher_is_a_step_s() -> None:
    progress = _at(_resumed_a_day_later())
    first, second = progress.figures.steps
    assert (first.seconds, second.seconds) == (pytest.approx(2.0), pytest.approx(2.0))
    assert second.idle == pytest.approx(1 - 0.3 / 2.0)
    assert second.tokens_per_s == pytest.approx(4 * 3 / 2.0)
    assert progress.eta_s(3) == pytest.approx(2.0)
    assert progress.figures.time.startup == 20 * SECOND
    assert progress.summary()["seconds"] == pytest.approx(13.0 + 21.0)
    assert progress.summary()["lives"] == 2


def test_a_step_that_is_trained_while_engines_start_took_what_the_trainer_says() -> None:
    timed = _resumed_a_day_later(killed=12.1)
    late = [(at, event) for at, event in timed if not (isinstance(event, WeightsActivated) and at > 20.0)]
    line = _at(late).figures.steps[1]
    assert (line.seconds, line.idle) == (pytest.approx(0.3), pytest.approx(0.0))


def test_a_step_that_is_trained_while_engines_start_does_not_end_their_start() -> None:
    """The batch of step 1 was sealed in the life before and is trained at once; an engine is there 50 s later."""
    before = events()
    (first, second) = (number for number, event in enumerate(before) if isinstance(event, StepCommitted))
    timed = [(1.0 if number < first else 2.0, event) for number, event in enumerate(before[:second])]
    worked = _at(timed).figures.time.worked
    ready = made.activated(2, engine="engine-2", lag=0.2)
    timed += [
        (100.0, made.resumed()),
        (105.0, WorkerJoined(worker="trainer-2", role="trainer", pid=2)),
        (106.0, before[second]),
        (156.0, ready),
        (157.5, msgspec.structs.replace(ready, engine="engine-3")),
    ]
    time = _at(timed).figures.time
    assert time.startup == 56 * SECOND
    assert time.worked - worked == 1.5 * SECOND


def test_the_first_step_of_a_life_is_not_what_the_others_are_expected_to_take() -> None:
    driver = Driver(make_plan(steps=4))
    driver.play(random.Random(0))
    progress, seconds = Progress("drive"), {0: 30.0, 1: 31.0, 2: 32.0, 3: 33.0}
    now = 0.0
    for recorded in driver.log:
        event = recorded.envelope.event
        now = seconds[event.step] if isinstance(event, StepCommitted) else now
        envelope = msgspec.structs.replace(recorded.envelope, at=round(now * SECOND))
        progress.apply(Recorded(recorded.position, recorded.subject, envelope, recorded.data))
    assert progress.eta_s(14) == pytest.approx(10.0)
