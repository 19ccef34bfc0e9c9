"""`prediction_rules`: the rules of the multi-token prediction layer that the trainer trains, by Megatron's names."""

from __future__ import annotations

from dataclasses import replace

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import family_of
from actors.megatron.families.rules import Copy, Rule, SwappedHalves

PREDICTION = "mtp.layers.0."
"""Begin of the names of its parameters, as in Megatron's own models."""


def prediction_rules(architecture: Architecture) -> dict[str, Rule]:
    """Return the rules of the layer after the last one; none if it is not trained.

    Its copies of the embedding and of the output layer are no parameters: it uses those of the model.
    """
    if not architecture.trains_prediction:
        return {}
    number, hidden = architecture.num_layers, architecture.hidden_size
    usual, inside = f"model.layers.{number}.", f"decoder.layers.{number}."
    family = family_of(architecture)
    names = family.prediction
    theirs = names.prefix or usual
    layer = {
        name.removeprefix(inside): replace(rule, names=tuple(theirs + each.removeprefix(usual) for each in rule.names))
        for name, rule in family.layer_rules(architecture, number).items()
    }
    projection = SwappedHalves if names.hidden_first else Copy
    return {
        PREDICTION + "enorm.weight": Copy.of(f"{theirs}{names.enorm}.weight", hidden),
        PREDICTION + "hnorm.weight": Copy.of(f"{theirs}{names.hnorm}.weight", hidden),
        PREDICTION + "eh_proj.weight": projection.of(f"{theirs}{names.projection}.weight", hidden, 2 * hidden),
        **{f"{PREDICTION}transformer_layer.{name}": rule for name, rule in layer.items()},
        PREDICTION + "final_layernorm.weight": Copy.of(f"{theirs}{names.norm}.weight", hidden),
    }
