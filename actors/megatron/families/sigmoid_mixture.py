"""`SigmoidMixture`: experts as DeepSeek-V3 has them, which GLM-4.5 and Kimi K2 share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from actors.megatron.families.experts import Experts, ScoreFunction
from actors.megatron.families.mixture import Mixture


class SigmoidMixture(Mixture):
    """Mixtures whose router scores by a sigmoid, and chooses by the score and a bias.

    Their first layers are dense, and shared experts process every token.
    """

    sizes: ClassVar[tuple[str, ...]] = (
        "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "routed_scaling_factor",
        "first_k_dense_replace", "n_group", "topk_group",
    )  # fmt: skip
    """Values that config.json must have, because the defaults of the families differ."""

    def experts_of(self, config: Mapping[str, Any]) -> Experts:
        """Return the experts, whose number transformers 5 may call `num_local_experts`."""
        wide = config["moe_intermediate_size"]
        return Experts(
            count=config.get("n_routed_experts") or config["num_local_experts"],
            per_token=config["num_experts_per_tok"],
            ffn_hidden_size=wide,
            normalized=True,
            score_function=ScoreFunction.SIGMOID,
            biased=True,
            scaling_factor=float(config["routed_scaling_factor"]),
            groups=config["n_group"] or 1,
            groups_per_token=config["topk_group"] or 1,
            shared_ffn_hidden_size=wide * (config["n_shared_experts"] or 0),
            first_dense=config["first_k_dense_replace"],
        )

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of the base class, and those of Megatron's router."""
        chosen, groups, best = (config.get(name) or 1 for name in ("num_experts_per_tok", "n_group", "topk_group"))
        scores, method = config.get("scoring_func", "sigmoid"), config.get("topk_method", "noaux_tc")
        frequency = config.get("moe_layer_freq", 1)
        return super().unsupported(config) | {
            **{f"{name} is missing": name not in config for name in self.sizes},
            "norm_topk_prob false (the router normalizes the weights of a token's experts)": (
                not config.get("norm_topk_prob", True)
            ),
            "num_experts_per_tok 1 (the router does not normalize a single weight)": chosen == 1,
            # The router ranks groups by the sum of their best num_experts_per_tok / topk_group scores, others by two.
            f"topk_group {best} of n_group {groups} with num_experts_per_tok {chosen} ({2 * best} is supported)": (
                best < groups and chosen // best != 2
            ),
            f"scoring_func {scores} (sigmoid is supported)": scores != "sigmoid",
            f"topk_method {method} (noaux_tc is supported)": method != "noaux_tc",
            f"moe_layer_freq {frequency} (1 is supported)": frequency != 1,
        }
