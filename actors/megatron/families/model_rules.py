"""`whole_rules`: the rules of a whole model, by Megatron's names."""

from __future__ import annotations

from collections.abc import Mapping

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.prediction_rules import prediction_rules
from actors.megatron.families.registry import family_of
from actors.megatron.families.rules import Copy, Rule


def whole_rules(architecture: Architecture) -> dict[str, Rule]:
    """Return the rules of every parameter, also under the names that only one kind of layer spec has."""
    table = (architecture.vocab_size, architecture.hidden_size)
    rules: dict[str, Rule] = {
        "embedding.word_embeddings.weight": Copy.of("model.embed_tokens.weight", *table, cut=0),
        "decoder.final_layernorm.weight": Copy.of("model.norm.weight", architecture.hidden_size),
        "output_layer.weight": Copy.of("lm_head.weight", *table, cut=0),
    }
    family = family_of(architecture)
    for layer in range(architecture.num_layers):
        rules |= family.layer_rules(architecture, layer)
    return rules | prediction_rules(architecture)


def names_of(rules: Mapping[str, Rule]) -> dict[tuple[str, ...], list[str]]:
    """Return Megatron's names of each parameter by the Hugging Face tensors that it is made of."""
    named: dict[tuple[str, ...], list[str]] = {}
    for name, rule in rules.items():
        named.setdefault(rule.names, []).append(name)
    return named
