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
