"""The cost of the live view: which steps count, and what is compared."""

from __future__ import annotations

import pytest

from benchmarks.live_view import Request, Window, _figures, _steps
from schemas.errors import DeadlineExceeded

S = 10**9


def window(begin: float, end: float, *, is_open: bool) -> Window:
    return Window(int(begin * S), int(end * S), is_open, 0.5 if is_open else 0.0, (Request("now", 0.1),) * is_open)


def test_steps_lie_wholly_in_a_window() -> None:
    commits = [step * S for step in range(20)]
    assert _steps(commits, window(2.5, 6.0, is_open=True)) == [1.0, 1.0, 1.0]
    with pytest.raises(DeadlineExceeded):
        _steps(commits, window(2.5, 3.4, is_open=True))


def test_the_ratio_is_of_open_to_closed() -> None:
    windows = [window(index, index + 1, is_open=not index % 2) for index in range(4)]
    ratio, cpu = _figures(windows, [[2.0, 2.2], [1.0, 1.0], [2.0, 2.0], [1.0, 1.25]])
    assert ratio.value == pytest.approx(2.0)
    assert not ratio.met
    assert cpu.value == pytest.approx(1.0 / 4 * 1e3)
