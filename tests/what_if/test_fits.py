"""The fits: least squares without negative coefficients, and the load of intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.analysis.what_if.intervals import Load
from slime_events.analysis.what_if.least_squares import fit

INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=12)


def test_exact_coefficients_are_found() -> None:
    columns = np.random.default_rng(0).random((50, 3))
    fitted = fit(columns, columns @ [0.5, 0.0, 2.0])
    assert fitted.coefficients == pytest.approx((0.5, 0.0, 2.0))
    assert fitted.error == pytest.approx(0.0, abs=1e-9)


def test_no_coefficient_is_negative() -> None:
    ones, rising = np.ones(10), np.arange(10.0)
    fitted = fit(np.stack([ones, rising], axis=1), 20 - rising)
    assert fitted.coefficients == pytest.approx((15.5, 0.0))


def test_columns_that_are_alike_or_empty_do_not_break_the_fit() -> None:
    rising = np.arange(1.0, 11.0)
    fitted = fit(np.stack([rising, 2 * rising, np.zeros(10)], axis=1), 3 * rising)
    assert fitted.coefficients[0] + 2 * fitted.coefficients[1] == pytest.approx(3.0)
    assert fitted.coefficients[2] == 0.0


@given(INTERVALS, st.integers(0, 20), st.integers(0, 20))
def test_load_is_counted_as_second_by_second(intervals: list[tuple[int, int]], a: int, b: int) -> None:
    begin, end = sorted((a, b))
    counts = [sum(low <= second < high for low, high in intervals) for second in range(begin, end)]
    load = Load(intervals)
    assert load.covered([begin], [end])[0] == pytest.approx(sum(counts))
    assert load.busy([begin], [end])[0] == pytest.approx(sum(count > 0 for count in counts))
    every = [sum(low <= second < high for low, high in intervals) for second in range(21)]
    assert load.most == max(every)
