"""Test the figures that the recovery benchmark computes from kills and starts."""

from __future__ import annotations

from benchmarks.recovery import TARGET_S, figure_of
from schemas.workers import WorkerJoined
from tests.harness.chaos.killer import Struck
from tests.harness.chaos.measures import Recovery
from tests.harness.chaos.schedule import Kind

STARTS = [WorkerJoined(worker="conductor-1", role="conductor", pid=1, seconds={"ready": 2.0})]


def _recovery(kind: Kind, first_token_s: float | None, back_s: float | None) -> Recovery:
    return Recovery(Struck(0, kind, 1, 0, 0, 0), first_token_s, back_s, 0.0, alone=True)


def test_a_figure_has_its_target_and_what_the_start_is_made_of() -> None:
    recovered = [_recovery(Kind.CONDUCTOR, 0.5, 4.0), _recovery(Kind.CONDUCTOR, 1.5, 6.0)]
    figure = figure_of(Kind.CONDUCTOR, recovered, STARTS)
    assert (figure.value, figure.target, figure.met) == (1.0, TARGET_S, True)
    assert figure.note == "worst of 2: 1.5; conductor back in 5.0, of which its start: ready 2.0"


def test_what_says_no_joined_has_no_start_to_tell_of() -> None:
    assert figure_of(Kind.NATS, [_recovery(Kind.NATS, 0.7, None)], STARTS).note == "worst of 1: 0.7"


def test_what_never_came_back_has_not_met_its_target() -> None:
    figure = figure_of(Kind.GRADER, [_recovery(Kind.GRADER, None, None)], STARTS)
    assert figure.value is None
    assert figure.met is False
