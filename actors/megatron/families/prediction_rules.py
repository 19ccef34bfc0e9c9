"""`prediction_rules`: the rules of the multi-token prediction layer that the trainer trains, by Megatron's names."""

from __future__ import annotations

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import family_of
from actors.megatron.families.rules import Copy, Rule

PREDICTION = "mtp.layers.0."
"""Begin of the names of its parameters, as in Megatron's own models."""


def prediction_rules(architecture: Architecture) -> dict[str, Rule]:
    """Return the rules of the layer after the last one; none if it is not trained.

    Its copies of the embedding and of the output layer are no parameters: it uses those of the model.
    """
    if not architecture.trains_prediction:
        return {}
    number, hidden = architecture.num_layers, architecture.hidden_size
    theirs, inside = f"model.layers.{number}.", f"decoder.layers.{number}."
    layer = family_of(architecture).layer_rules(architecture, number)
    return {
        PREDICTION + "enorm.weight": Copy.of(theirs + "enorm.weight", hidden),
        PREDICTION + "hnorm.weight": Copy.of(theirs + "hnorm.weight", hidden),
        PREDICTION + "eh_proj.weight": Copy.of(theirs + "eh_proj.weight", hidden, 2 * hidden),
        **{f"{PREDICTION}transformer_layer.{name.removeprefix(inside)}": rule for name, rule in layer.items()},
        PREDICTION + "final_layernorm.weight": Copy.of(theirs + "shared_head.norm.weight", hidden),
    }
