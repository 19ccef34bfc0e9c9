"""`activation_bytes`: the memory that a micro batch needs for its backward pass, by arithmetic.

The terms are those of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), with
attention that keeps no scores, and `Architecture.layer_values` in place of their 34 bytes of a hidden value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.layout import Layout
from schemas.doc import doc

UNCUT = 10 / 34
"""Share of a layer's values that tensor parallel ranks each have whole, without sequence parallelism (section 4.2)."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """Which layers of a stage keep their values, and which only their input."""

    live: Annotated[int, doc("Layers whose values exist at a time while others are computed again.")]
    inputs: Annotated[int, doc("Layers, or groups of layers, of which only the input is kept.")]

    @classmethod
    def of(cls, flags: dict[str, Any], layers: int) -> Recompute:
        """Return the layers by Megatron's flags. Recomputing parts of a layer (selective) counts as none."""
        if flags.get("recompute_granularity") != "full" or not layers:
            return cls(layers, 0)
        count = min(int(flags.get("recompute_num_layers") or 1), layers)
        if flags.get("recompute_method") == "block":
            return cls(layers - count + 1, count)
        return cls(count, -(-layers // count))


def activation_bytes(
    architecture: Architecture, layout: Layout, flags: dict[str, Any], stage: int, tokens: int, imbalance: float
) -> float:
    """Return the bytes in bfloat16 that a rank of a pipeline's stage keeps.

    tokens: of a micro batch on this rank. imbalance: tokens of the fullest expert rank over the mean. The first stage
    keeps as many micro batches as there are stages (1F1B), the last one a single one.
    """
    layers = sum(len(part) for part in layout.stages(architecture.num_layers)[stage])
    recompute = Recompute.of(flags, layers)
    cut = 1 / layout.tensor if layout.sequence else UNCUT + (1 - UNCUT) / layout.tensor
    values = architecture.layer_values * cut + _dispatched(architecture, imbalance) / layout.tensor
    inputs = architecture.hidden_size / (layout.tensor if layout.sequence else 1)
    flying = float(layout.pipeline - stage)
    if (parts := layout.virtual_stages(architecture.num_layers)) > 1:  # section 4.2.3: the interleaved schedule
        flying += (layout.pipeline - 1) / parts
    kept = flying * inputs * recompute.inputs + values * (recompute.live if recompute.inputs else flying * layers)
    return 2 * tokens * kept


def _dispatched(architecture: Architecture, imbalance: float) -> float:
    """Return the values per token that experts add: copies of the hidden state to and from each expert of a token.

    The part of `layer_values` that experts' MLPs have grows with the imbalance too.
    """
    experts = architecture.experts
    if experts is None:
        return 0.0
    copies = 2 * experts.per_token * architecture.hidden_size
    inner = 5 * experts.per_token * experts.ffn_hidden_size
    return imbalance * copies + (imbalance - 1) * inner
