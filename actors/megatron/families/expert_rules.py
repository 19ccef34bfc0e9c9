"""`expert_rules`: the rules of a layer's router, experts and shared experts, by Megatron's names."""

from __future__ import annotations

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.rules import Copy, GateUp, Rule


def expert_rules(architecture: Architecture, layer: int) -> dict[str, Rule]:
    """Return the rules of a layer's mixture of experts, which has the same names in both kinds of spec."""
    ours, theirs = f"decoder.layers.{layer}.mlp.", f"model.layers.{layer}.mlp."
    hidden, experts = architecture.hidden_size, architecture.experts
    assert experts is not None, "the family reads them"
    rules: dict[str, Rule] = {ours + "router.weight": Copy.of(theirs + "gate.weight", experts.count, hidden)}
    if experts.biased:
        rules[ours + "router.expert_bias"] = Copy.of(theirs + "gate.e_score_correction_bias", experts.count)
    for expert in range(experts.count):
        inside, outside = f"{ours}experts.local_experts.{expert}.", f"{theirs}experts.{expert}."
        mlp = _mlp(inside, outside, experts.ffn_hidden_size, hidden)
        rules |= {name: rule.of_expert(expert) for name, rule in mlp.items()}
    if experts.shared_ffn_hidden_size:
        rules |= _mlp(ours + "shared_experts.", theirs + "shared_experts.", experts.shared_ffn_hidden_size, hidden)
    return rules


def _mlp(inside: str, outside: str, wide: int, hidden: int) -> dict[str, Rule]:
    gate_up = (outside + "gate_proj.weight", outside + "up_proj.weight")
    return {
        inside + "linear_fc1.weight": GateUp.of(gate_up, wide, hidden),
        inside + "linear_fc2.weight": Copy.of(outside + "down_proj.weight", hidden, wide, cut=1),
    }
