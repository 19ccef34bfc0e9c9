"""DeepSeek V2: latent attention, and a softmax router whose weights do not sum to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.megatron.families.experts import Experts
from actors.megatron.families.latent_dense import LatentDense
from actors.megatron.families.mixture import Mixture

GREEDY, IN_GROUPS = "greedy", "group_limited_greedy"
"""Values of `topk_method`: the best experts of all, and the best experts of the best groups."""


class DeepseekV2(Mixture, LatentDense):
    """DeepSeek-V2-Lite and DeepSeek-Coder-V2-Lite."""

    model_class = "DeepseekV2ForCausalLM"

    def experts_of(self, config: Mapping[str, Any]) -> Experts | None:
        """Return the experts; None if the file says that all layers are dense."""
        dense = config.get("first_k_dense_replace") or 0
        if not config.get("n_routed_experts") or dense >= config["num_hidden_layers"]:
            return None
        in_groups = config.get("topk_method", GREEDY) == IN_GROUPS
        return Experts(
            count=config["n_routed_experts"],
            per_token=config["num_experts_per_tok"],
            ffn_hidden_size=config["moe_intermediate_size"],
            normalized=False,
            scaling_factor=float(config.get("routed_scaling_factor") or 1.0),
            groups=(config.get("n_group") or 1) if in_groups else 1,
            groups_per_token=(config.get("topk_group") or 1) if in_groups else 1,
            shared_ffn_hidden_size=(config.get("n_shared_experts") or 0) * config["moe_intermediate_size"],
            first_dense=dense,
        )

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of latent attention, and routers that Megatron does not have.

        A group's score is its best expert's. Megatron adds up as many experts of a group as a token has per group.
        """
        conditions, experts = super().unsupported(config), self.experts_of(config)
        if experts is None:
            return conditions
        method, score = config.get("topk_method", GREEDY), config.get("scoring_func", "softmax")
        groups = f"num_experts_per_tok {experts.per_token} with topk_group {experts.groups_per_token}"
        return conditions | {
            f"topk_method {method} ({GREEDY} and {IN_GROUPS} are supported)": method not in (GREEDY, IN_GROUPS),
            f"topk_method {method} with n_group {config.get('n_group')} (SGLang would choose groups)": (
                method == GREEDY and (config.get("n_group") or 1) > 1
            ),
            f"scoring_func {score} (softmax is supported)": score != "softmax",
            "norm_topk_prob": bool(config.get("norm_topk_prob")),
            f"moe_layer_freq {config.get('moe_layer_freq')} (1 is supported)": config.get("moe_layer_freq", 1) != 1,
            f"{groups} of {experts.groups} groups (Megatron needs 1 expert per group)": (
                experts.groups > 1 and experts.per_token != experts.groups_per_token
            ),
        }
