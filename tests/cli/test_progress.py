"""The trainer's idle share, from a log alone."""

from __future__ import annotations

import random

import msgspec
import pytest

from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from slime_events.cli.show_run import run_facts, run_text
from slime_events.history import History, apply
from slime_events.progress import Progress
from storage.log import Recorded
from tests.conductor.driver import Driver, make_plan

SECOND = 1_000_000_000


def test_the_trainer_is_idle_where_it_neither_trains_nor_saves() -> None:
    """Commits at 10, 20 and 30 s, each after 4 s of work; a checkpoint of 2 s after the second of them."""
    driver = Driver(make_plan(steps=3, checkpoint_every=2))
    driver.play(random.Random(0))
    progress, history, now = Progress("drive"), History("drive"), SECOND
    for recorded in driver.log:
        event = recorded.envelope.event
        if isinstance(event, StepCommitted):
            now = (event.step + 1) * 10 * SECOND
            event = msgspec.structs.replace(event, seconds={"train": 3.0, "weights": 1.0})
        elif isinstance(event, CheckpointSaved):
            event = msgspec.structs.replace(event, seconds=2.0)
        envelope = msgspec.structs.replace(recorded.envelope, event=event, at=now)
        said = Recorded(recorded.position, recorded.subject, envelope, recorded.data)
        progress.apply(said)
        apply(history, said)
    assert [line.idle for line in progress.steps][1:] == pytest.approx([0.6, 0.4])
    assert progress.trainer_idle == progress.summary()["trainer_idle"] == pytest.approx(0.5)
    assert "idle 50.0% of the time from its first commit to its last" in run_text(run_facts(history, progress))
