"""`fit`: least squares with coefficients that are not negative."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.doc import doc

Numbers = npt.NDArray[np.float64]
ALIKE = 1e-9
"""Smallest singular value of two columns that are not multiples of each other, relative to the largest."""
WIDTH = 2.0
"""Standard errors on each side of a value in its range."""


class Fitted(NamedTuple):
    """Coefficients of the columns, and how well they fit."""

    coefficients: Annotated[tuple[float, ...], doc("per column, 0 or more")]
    error: Annotated[float, doc("mean absolute error [of the values]")]
    squares: Annotated[float, doc("sum of the squared errors")]


def fit(columns: Numbers, values: Numbers) -> Fitted:
    """Return the coefficients of `columns` [rows, few] that predict `values` [rows] best.

    All subsets of the columns are tried, on their products, so there must be few. A column that is always 0 gets the
    coefficient 0; of columns that are multiples of each other, one is used.
    """
    width = columns.shape[1]
    scale = np.sqrt(np.square(columns).sum(axis=0))
    used = [index for index in range(width) if scale[index] > 0]
    scaled = columns[:, used] / scale[used]
    products, targets = scaled.T @ scaled, scaled.T @ values
    best, least = np.zeros(len(used)), 0.0
    for count in range(1, len(used) + 1):
        for subset in map(list, combinations(range(len(used)), count)):
            block = products[np.ix_(subset, subset)]
            if np.linalg.cond(block) > 1 / ALIKE:
                continue
            solved = np.linalg.solve(block, targets[subset])
            gained = float(targets[subset] @ solved)  # the squares that the subset explains
            if (solved >= 0).all() and -gained < least * (1 + ALIKE):
                best, least = np.zeros(len(used)), -gained
                best[subset] = solved
    coefficients = np.zeros(width)
    coefficients[used] = best / scale[used]
    errors = values - columns @ coefficients
    error = float(np.abs(errors).mean()) if len(values) else 0.0
    return Fitted(tuple(map(float, coefficients)), error, float(np.square(errors).sum()))


def fit_with(index: int, value: float, columns: Numbers, values: Numbers) -> Fitted:
    """Return the best fit in which one coefficient has this value."""
    others = columns.copy()
    others[:, index] = 0.0
    fitted = fit(others, values - value * columns[:, index])
    coefficients = (*fitted.coefficients[:index], value, *fitted.coefficients[index + 1 :])
    return Fitted(coefficients, fitted.error, fitted.squares)


def range_of(
    index: int, columns: Numbers, values: Numbers, groups: npt.NDArray[np.int64], fitted: Fitted
) -> tuple[float, float]:
    """Return the least and the most that a coefficient can be: two standard errors below and above its value.

    groups [rows]: rows of one group may have common errors, as those of one step on a busy machine, so the standard
    error is taken from the sums over the groups (a "cluster-robust" or "sandwich" estimate). If the column cannot be
    told from the others, the coefficient can be anything from 0 to where it explains all values alone.
    """
    column = columns[:, index]
    if not column.any():
        return 0.0, 0.0
    alone = max(0.0, float(column @ values / (column @ column)))
    fits = [fitted, fit_with(index, 0.0, columns, values), fit_with(index, alone, columns, values)]
    used = [at for at in range(columns.shape[1]) if at != index and any(each.coefficients[at] > 0 for each in fits)]
    others = columns[:, used] / np.sqrt(np.square(columns[:, used]).sum(axis=0))

    def apart(numbers: Numbers) -> Numbers:
        """Return what the other columns do not explain."""
        return np.asarray(numbers - others @ np.linalg.lstsq(others, numbers, rcond=ALIKE)[0])

    own = apart(column)
    squares = float(own @ own)
    if squares < ALIKE * float(column @ column):
        return 0.0, alone
    value = float(own @ values) / squares
    _, places = np.unique(groups, return_inverse=True)
    sums = np.bincount(places, own * apart(values - value * column))
    error = np.sqrt(float(sums @ sums) * len(sums) / max(1, len(sums) - 1)) / squares
    least, most = np.clip((value - WIDTH * error, value + WIDTH * error), 0.0, alone)
    return min(float(least), fitted.coefficients[index]), max(float(most), fitted.coefficients[index])
