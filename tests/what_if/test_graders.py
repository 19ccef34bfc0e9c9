"""How many gradings graders make at once, from times of which only ends and seconds are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slime_events.analysis.what_if.grader_speed import Graded, GraderSpeed, busy_times, wait_of


def batch(end: float, *seconds: float, completed: float = 0.0) -> list[Graded]:
    """Gradings whose results have one end."""
    return [Graded(completed, end - each, end) for each in seconds]


IN_TURN = [*batch(1.0, 0.5, 0.5), *batch(2.0, 0.4, 0.6)]
TWO_IN_TURN = [*IN_TURN, *batch(2.0, 1.0, 1.0)]
AT_ONCE = batch(0.25, *[0.2] * 8)
RARE = [grading for at in range(5) for grading in batch(at + 0.5, 0.2, completed=float(at))]


@pytest.mark.parametrize(
    ("graded", "processes", "gradings", "busiest", "is_known"),
    [
        (IN_TURN, 1, 1, 1.0, True),  # overlapping times of one batch are no gradings at once
        (TWO_IN_TURN, 2, 2, 2.0, True),
        (AT_ONCE, 1, 8, 6.4, True),  # 1.6 s of work in 0.25 s
        (RARE, 1, 1, 0.4, False),
        (RARE, 4, 4, 0.4, False),
        ([], 3, 3, 0.0, True),
    ],
)
def test_gradings_at_once(
    graded: Sequence[Graded], processes: int, gradings: int, busiest: float, is_known: bool
) -> None:
    speed = GraderSpeed.of(reversed(graded), processes)
    assert (speed.gradings, speed.is_known) == (gradings, is_known)
    assert speed.busiest == pytest.approx(busiest)
    assert speed.with_processes(2 * processes) == 2 * gradings


def test_waits_without_a_queue() -> None:
    assert wait_of(IN_TURN, 1) == pytest.approx(0.0)
    assert wait_of(RARE, 1) == wait_of(RARE, 4) == pytest.approx(0.3)  # of the longest grading alone
    assert wait_of([], 1) == 0.0


def test_a_pause_between_two_samples_ends_a_busy_time() -> None:
    assert [(busy.begin, busy.end) for busy in busy_times([*IN_TURN, *batch(5.0, 1.0, completed=3.0)])] == [
        (0, 2),
        (3, 5),
    ]
