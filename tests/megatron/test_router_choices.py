"""Experts that a router is made to use: for some tokens or all, and when the backward pass computes a layer again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from actors.megatron.router_choices import UNKNOWN, Forced, RouterChoices, leave_alone

TOKENS, EXPERTS, EACH = 5, 6, 2


def top(scores: Tensor, topk: int, num_groups: int | None = None, group_topk: int | None = None) -> Any:
    """Megatron's own choice."""
    return tuple(torch.topk(scores, topk))


def forced(first: int, unknown: tuple[int, ...] = ()) -> Forced:
    """Experts `first` and the next for each token, but not for the unknown ones."""
    ids = torch.tensor([[first, first + 1]] * TOKENS)
    ids[list(unknown)] = UNKNOWN
    return Forced(ids, whole=not unknown)


def test_a_router_chooses_for_tokens_without_experts() -> None:
    choices, scores = RouterChoices(0), torch.rand(TOKENS, EXPERTS)
    choices.begin(forced(3, unknown=(1, 4)), records=True)
    values, ids = choices.get_replay_topk(scores, EACH, default_compute_topk=top)
    expected = torch.tensor([[3, 4]] * TOKENS)
    expected[[1, 4]] = top(scores, EACH)[1][[1, 4]]
    assert torch.equal(ids, expected)
    assert torch.equal(values, scores.gather(1, expected))
    assert choices.chosen is ids
    choices.begin(None)
    assert torch.equal(choices.get_replay_topk(scores, EACH, default_compute_topk=top)[1], top(scores, EACH)[1])
    assert choices.chosen is None


def test_a_layer_that_is_computed_again_gets_the_experts_of_its_micro_batch() -> None:
    """A second micro batch is on its way before the backward pass of the first, as in a pipeline.

    The last one has no experts: a pass that keeps a rank busy.
    """
    choices, gradients = RouterChoices(0), []
    for recomputed in (False, True):
        losses, inputs = [], [torch.full((TOKENS, EXPERTS), 2.0, requires_grad=True) for _ in range(4)]

        def layer(scores: Tensor) -> Tensor:
            values: Tensor = choices.get_replay_topk(scores * scores, EACH, default_compute_topk=top)[0]
            return values

        for number in (0, 1, None, 2, None, 3, None, None):  # a forward pass, or the backward pass of the oldest
            if number is None:
                losses.pop(0).backward()
                continue
            if number < 3:
                choices.begin(forced(number), trains=True)
            else:
                leave_alone([choices])
            scores = inputs[number]
            values = checkpoint(layer, scores, use_reentrant=True) if recomputed else layer(scores)
            losses.append(values.sum() * (number + 1))
        gradients.append([scores.grad for scores in inputs])
    for number, (once, again) in enumerate(zip(*gradients, strict=True)):
        assert torch.equal(once, again)
        if number < 3:
            assert once[0].nonzero()[:, 0].tolist() == [number, number + 1]
