"""The credit rule: which turns of a forest are trained on, in which sample, and how much each counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sessions import Credit
from slime_events.algorithms.credit import CreditRule, TurnTokens, credited_paths

Forest = dict[int, int | None]


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Turns that extend an earlier one, or none."""
    turns = range(draw(st.integers(1, 12)))
    return {turn: draw(st.one_of(st.none(), st.integers(0, turn - 1)) if turn else st.none()) for turn in turns}


def leaves_of(forest: Forest) -> list[int]:
    """The newest first, as a session is sealed."""
    ends = [turn for turn in forest if turn not in forest.values()]
    return [*ends[-1:], *ends[:-1]]


@given(forests(), st.sampled_from(list(Credit)), st.floats(0.1, 1.0))
def test_a_turn_is_trained_once_by_every_rule(forest: Forest, credit: Credit, discount: float) -> None:
    leaves = leaves_of(forest)
    paths = credited_paths(forest, leaves, CreditRule(credit, discount))
    assert [path.turns[-1] for path in paths] == (leaves[:1] if credit is Credit.LEAF else leaves)
    trained = [turn for path in paths for turn in path.trained]
    assert len(trained) == len(set(trained))
    trained_by_rule = {Credit.ALL: set(forest), Credit.DISCOUNTED: set(forest), Credit.LAST: set(leaves)}
    assert set(trained) == trained_by_rule.get(credit, set(paths[0].turns))
    for path in paths:
        expected = [discount ** (len(path.turns) - 1 - place) for place in range(len(path.turns))]
        assert path.weights == pytest.approx(expected if credit is Credit.DISCOUNTED else [1.0] * len(expected))


@given(forests(), st.data())
def test_masks_and_credit_are_laid_over_the_response(forest: Forest, data: st.DataObject) -> None:
    counts = st.tuples(st.integers(0, 4), st.integers(1, 4))
    turns = {turn: TurnTokens(before, *data.draw(counts)) for turn, before in forest.items()}
    for path in credited_paths(forest, leaves_of(forest), CreditRule(Credit.DISCOUNTED, 0.5)):
        mask, credit = path.mask(turns), path.credit(turns)
        expected = list[float]()
        for place, turn in enumerate(path.turns):
            expected += [0.0] * (turns[turn].observed if place else 0)
            expected += [0.5 ** (len(path.turns) - 1 - place)] * turns[turn].generated
        assert len(mask) == len(expected)
        assert credit is None if len(path.turns) == 1 else np.array_equal(credit, np.array(expected, np.float32))
        assert mask.sum() == sum(turns[turn].generated for turn in path.trained)
        assert all(weight > 0 for weight, trained in zip(expected, mask, strict=True) if trained)


def test_a_discount_of_one_is_the_rule_that_trains_all() -> None:
    (path,) = credited_paths({0: None, 1: 0}, [1], CreditRule(Credit.DISCOUNTED, 1.0))
    assert path.credit({0: TurnTokens(None, 3, 2), 1: TurnTokens(0, 1, 1)}) is None
