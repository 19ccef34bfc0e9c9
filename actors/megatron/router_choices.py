"""`RouterChoices`: the experts that a layer's router is given, and those that it chose."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay
from torch import Tensor

from schemas.doc import doc

TopK = tuple[Tensor, Tensor]
"""Scores and ids of the chosen experts, [tokens, experts per token]."""
UNKNOWN = -1
"""Id of the experts of a token for which the router chooses."""


class Forced(NamedTuple):
    """Experts of a router's tokens in a pass."""

    ids: Annotated[Tensor, doc("int64 [tokens, experts per token]; a token with `UNKNOWN` is left to the router")]
    whole: Annotated[bool, doc("no token is left to the router")]


@dataclass(slots=True)
class RouterChoices:
    """Takes the place of Megatron's `RouterReplay` at a router, which asks it for the experts of each token.

    Megatron's own knows no token without given experts, and in a pipeline it expects that every layer is computed again
    in the backward pass.
    """

    layer: Annotated[int, doc("index of the layer in the whole model")]
    forced: Annotated[Forced | None, doc("for the tokens of this pass; None: the router chooses")] = None
    records: Annotated[bool, doc("keep the experts of this pass in `chosen`")] = False
    trains: Annotated[bool, doc("a backward pass follows, which may compute the layer again")] = False
    chosen: Annotated[Tensor | None, doc("int64 [tokens, experts per token]")] = None
    _again: deque[Forced | None] = field(default_factory=deque)

    def begin(self, forced: Forced | None, *, records: bool = False, trains: bool = False) -> None:
        """Set the fields before a pass."""
        self.forced, self.records, self.trains, self.chosen = forced, records, trains, None
        if not trains:
            self._again.clear()

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., TopK] | None = None,
    ) -> TopK:
        """Return the chosen experts with their scores [tokens, experts]; called by the router."""
        assert default_compute_topk is not None
        forced = self._forced_now()
        if forced is None:
            values, ids = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        else:
            ids = forced.ids.to(scores.device)
            if not forced.whole:
                own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)[1]
                ids = torch.where(ids == UNKNOWN, own, ids)
            values = scores.gather(1, ids)
        if self.records:
            self.chosen = ids
        return values, ids

    def _forced_now(self) -> Forced | None:
        """Return what this call is given.

        A layer that is computed again in the backward pass is first computed without a gradient, and then once with it.
        Micro batches of a pipeline are in flight together, but each router gets them back in their order.
        """
        if not self.trains:
            return self.forced
        if not torch.is_grad_enabled():
            self._again.append(self.forced)
            return self.forced
        return self._again.popleft() if self._again else self.forced


class Routing(Protocol):
    """The part of routers in a forward pass."""

    def begin(self, routers: Sequence[RouterChoices]) -> None:
        """Set the routers of all layers with experts, in the order of the layers, before the pass."""

    def end(self, routers: Sequence[RouterChoices]) -> None:
        """Read the routers after the pass; collective."""


def place_choices(model: torch.nn.Module) -> None:
    """Give each router of a model its `RouterChoices`, in place of Megatron's."""
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module.router_replay = RouterChoices(module.layer_number - 1)
    RouterReplay.clear_global_router_replay_instances()  # else the class would hold each of them


def choices_of(model: torch.nn.Module) -> list[RouterChoices]:
    """Return those of a model in the order of its layers; none if its config has no routing replay."""
    placed = [module.router_replay for module in model.modules() if isinstance(module, TopKRouter)]
    return [choices for choices in placed if isinstance(choices, RouterChoices)]


def leave_alone(routers: Sequence[RouterChoices]) -> None:
    """Let the routers choose in the next pass, and without a gradient free what they hold.

    With one, other micro batches may be on their way through a pipeline.
    """
    for router in routers:
        router.begin(None, trains=torch.is_grad_enabled())
