"""`Router`: Megatron's router of tokens to experts, for which padding does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from actors.megatron.router_balance import RouterBalance
from actors.megatron.voters import Voters

if TYPE_CHECKING:
    from actors.megatron.attention import PackedSequences


class Router(TopKRouter):  # type: ignore[misc]  # Megatron's class is not typed
    """A router that knows the sequences of its tokens."""

    voters: Voters | None
    """Those of the micro batch that is passed; None if all tokens are real."""
    balance: RouterBalance | None
    """Adds auxiliary losses in an update; None if there are none."""

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (weights, choices) of the experts, both [tokens, experts]. logits: [tokens, 1, experts]."""
        probs, routing_map = super().routing(logits, padding_mask)
        if self.balance is not None:
            voters = self.own_voters(len(probs))
            assert voters is not None, "packed sequences have voters"
            probs = self.balance.add_to(probs, logits.view(len(probs), -1), voters)
        return probs, routing_map

    def own_voters(self, tokens: int) -> Voters | None:
        """Return the voters among this rank's `tokens` tokens; None if all tokens are real."""
        return None if self.voters is None else self.voters.part(self.tp_group.rank(), tokens)

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        """Count the real tokens of each expert, if biases move. Megatron's own count takes a mask of another shape."""
        if not self.config.moe_router_bias_update_rate:
            return  # a layer of experts that a pipeline computes again has the voters of another micro batch
        voters = self.own_voters(len(routing_map))
        if voters is not None:
            routing_map = routing_map & voters.real.unsqueeze(1)
        super()._apply_expert_bias(routing_map)


def use_own_router(model: torch.nn.Module) -> None:
    """Make the routers of a model `Router`s, which learn the voters of each pass from their layer's arguments.

    A layer has its arguments again if the backward pass computes it again, when the stages of a pipeline have already
    passed other micro batches.
    """
    for layer in model.modules():
        router: Any = getattr(layer.mlp, "router", None) if isinstance(layer, TransformerLayer) else None
        if type(router) is TopKRouter:
            router.__class__, router.voters, router.balance = Router, None, None
            layer.register_forward_pre_hook(_give_voters, with_kwargs=True)


def _give_voters(layer: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    packed: PackedSequences = kwargs["packed_seq_params"]
    layer.mlp.router.voters = packed.voters


class ExpertBiases:
    """The biases of a model's routers, as they are now, and the loads by which a step moves them."""

    def __init__(self, model: torch.nn.Module) -> None:
        routers = [module for module in model.modules() if isinstance(module, TopKRouter)]
        self._routers = [router for router in routers if router.expert_bias is not None]
        self._biases = [router.expert_bias.clone() for router in self._routers]

    def take_back(self) -> None:
        """Give the biases these values again."""
        for router, bias in zip(self._routers, self._biases, strict=True):
            router.expert_bias.copy_(bias)

    def forget_load(self) -> None:
        """Begin a new count of the tokens of each expert."""
        for router in self._routers:
            router.local_tokens_per_expert.zero_()
