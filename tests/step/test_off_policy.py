"""Test a step's figures about the weights of recorded rollouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actors.step.step_metrics import OffPolicyMetrics
from slime_events.algorithms.objective import truncated


class Alone:
    """A process group of one."""

    def size(self) -> int:
        return 1


def test_figures_are_of_the_chosen_tokens_alone() -> None:
    figures = OffPolicyMetrics(torch.device("cpu"))
    group: Any = Alone()
    for ratios, chosen in (([1.0, 0.5, 9.0], [True, True, False]), ([4.0, 1.5], [True, True]), ([7.0], [False])):
        correction = truncated(torch.tensor(ratios).log(), torch.zeros(len(ratios)), 0.0, 2.0)
        figures.add(correction, torch.tensor(chosen))
    measured = figures.figures(group)
    assert measured == {
        "recalled_tis": pytest.approx((1.0 + 0.5 + 2.0 + 1.5) / 4),
        "recalled_tis_max": 2.0,
        "recalled_tis_clipfrac": 0.25,
    }


def test_without_a_token_nothing_is_divided_by() -> None:
    group: Any = Alone()
    assert set(OffPolicyMetrics(torch.device("cpu")).figures(group).values()) == {0.0}
