"""Discounted sums from the right, for returns and for GAE."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """y[:, t] = sum over k of discount^k * rewards[:, t + k]; rewards and result are [samples, tokens].

    By doubling: after step k every place holds the sum of its next 2^k terms, so log2(tokens) steps are enough.
    """
    returns = rewards
    reach, factor = 1, discount
    while reach < rewards.shape[1]:
        returns = torch.cat([returns[:, :-reach] + factor * returns[:, reach:], returns[:, -reach:]], dim=1)
        reach, factor = reach * 2, factor * factor
    return returns
