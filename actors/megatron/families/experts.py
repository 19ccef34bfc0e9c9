"""`Experts`: the sizes and the routing of a mixture of experts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts in place of the MLP of every layer. The router's scores are a softmax, computed in float32."""

    count: Annotated[int, doc("Experts of a layer.")]
    per_token: Annotated[int, doc("Experts that process a token.")]
    ffn_hidden_size: Annotated[int, doc("Inner size of an expert.")]
    normalized: Annotated[bool, doc("The weights of a token's experts sum to 1.")]

    def as_flags(self, num_layers: int) -> dict[str, object]:
        """Return Megatron's flags that describe the experts, by name."""
        return {
            "num_moe_experts": self.count,
            "moe_router_topk": self.per_token,
            "moe_ffn_hidden_size": self.ffn_hidden_size,
            "moe_router_score_function": "softmax",
            # The softmax over a token's chosen experts is the normalized softmax over all.
            "moe_router_pre_softmax": not self.normalized,
            "moe_layer_freq": [1] * num_layers,
        }


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
