"""`Experts`: the sizes and the routing of a mixture of experts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from schemas.doc import doc


class ScoreFunction(StrEnum):
    """The function that gives each expert its score for a token, with Megatron's names."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts in place of the MLP of a layer. The router computes its scores in float32."""

    count: Annotated[int, doc("Experts of a layer.")]
    per_token: Annotated[int, doc("Experts that process a token.")]
    ffn_hidden_size: Annotated[int, doc("Inner size of an expert.")]
    normalized: Annotated[bool, doc("The weights of a token's experts sum to 1, before the scaling factor.")]
    score_function: ScoreFunction = ScoreFunction.SOFTMAX
    biased: Annotated[bool, doc("A bias for each expert is added to its score for the choice, not for its weight.")] = (
        False
    )
    scaling_factor: Annotated[float, doc("Factor of the weights of a token's experts.")] = 1.0
    groups: Annotated[int, doc("Groups of experts.")] = 1
    groups_per_token: Annotated[int, doc("Groups from which the experts of a token are chosen.")] = 1
    shared_ffn_hidden_size: Annotated[int, doc("Inner size of the experts that process every token; 0 without.")] = 0
    first_dense: Annotated[int, doc("First layers that have one MLP and no experts.")] = 0

    def in_layer(self, layer: int) -> bool:
        """Return whether the layer with this number, from 0 on, has experts."""
        return layer >= self.first_dense

    def as_flags(self, num_layers: int) -> dict[str, object]:
        """Return Megatron's flags that describe the experts, by name."""
        flags: dict[str, object] = {
            "num_moe_experts": self.count,
            "moe_router_topk": self.per_token,
            "moe_ffn_hidden_size": self.ffn_hidden_size,
            "moe_router_score_function": self.score_function.value,
            "moe_router_enable_expert_bias": self.biased,
            "moe_router_topk_scaling_factor": self.scaling_factor,
            "moe_router_num_groups": self.groups,
            "moe_router_group_topk": self.groups_per_token,
            "moe_shared_expert_intermediate_size": self.shared_ffn_hidden_size or None,
            "moe_shared_expert_gate": False,
            "moe_layer_freq": [int(self.in_layer(layer)) for layer in range(num_layers)],
        }
        if self.score_function is ScoreFunction.SOFTMAX:  # Megatron does not read it with a sigmoid
            # The softmax over a token's chosen experts is the normalized softmax over all.
            flags["moe_router_pre_softmax"] = not self.normalized
        return flags


def layers_with_experts(pattern: object, num_layers: int) -> list[int] | None:
    """Return for each layer 1 if it has experts, else 0, from a value of `--moe-layer-freq`; None if it is not one.

    Megatron takes an interval, a list, or a sum such as `[0]*1+[1]*46`.
    """
    if isinstance(pattern, list):
        return pattern
    text = re.sub(r"[\s()]", "", str(pattern))
    if text.isdigit() and int(text):
        return [int(layer % int(text) == 0) for layer in range(num_layers)]
    layers: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", term)
        if match is None:
            return None
        layers += [int(digit) for digit in match[1].split(",")] * int(match[2] or 1)
    return layers
