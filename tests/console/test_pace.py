"""The pause of the live view follows the processor time that its pages take."""

from itertools import accumulate

import pytest

from serve_apps.http.console.pace import LONGEST_S, SHORTEST_S, Pace, rest_s


@pytest.mark.parametrize("worked_s", [0.0, 0.1, 0.2, 100.0])
def test_a_change_follows_after_a_rest(worked_s: float) -> None:
    spent = accumulate([7.0, worked_s, 0.0])
    pace = Pace(lambda: next(spent))
    pause_s = pace.pause_s()
    assert pause_s == pytest.approx(max(SHORTEST_S, rest_s(worked_s, LONGEST_S)))
    assert pause_s <= LONGEST_S
    assert pace.pause_s() == SHORTEST_S, "only the time since the last change counts"
