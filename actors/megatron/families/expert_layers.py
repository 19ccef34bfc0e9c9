"""Mixtures of experts on Megatron-core: the layer spec, the config, and a replacement for a missing kernel."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec

from actors.megatron.cpu import has_transformer_engine
from actors.megatron.families.architecture import Architecture
from actors.megatron.families.balance_losses import BalanceLosses
from schemas.errors import InvalidValue

logger = logging.getLogger(__name__)

WITHOUT: dict[str, object] = {
    "moe_permute_fusion": False,
    "moe_enable_deepep": False,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_deepep_num_sms": 20,
    "moe_hybridep_num_sms": 16,
    "moe_use_legacy_grouped_gemm": False,
    "moe_shared_expert_overlap": False,
    "moe_router_padding_for_quantization": False,
    "moe_router_padding_for_fp8": False,
    "moe_per_layer_logging": False,
    "moe_token_drop_policy": "probs",
}
"""The trainer's values of Megatron's settings that have no effect: settings of speed and of Megatron's own log, and the
policy of a limit that is not set.
"""
IGNORED = (*WITHOUT, "moe_token_dispatcher_type", "moe_router_pre_softmax")
"""Megatron's settings that have no effect if their value is not the trainer's."""
REFUSED = {
    "moe_expert_capacity_factor": "an expert with too many tokens would drop some, and log-probs would not be exact",
    "moe_token_dropping": "an expert with too many tokens would drop some, and log-probs would not be exact",
    "moe_pad_expert_input_to_capacity": "experts have no capacity, because they drop no tokens",
    "moe_input_jitter_eps": "random factors of the router's input would make log-probs inexact",
    "moe_router_force_load_balancing": "random experts would make log-probs meaningless",
    "moe_router_topk_limited_devices": "the experts of a token would depend on the ranks",
    "moe_apply_probs_on_input": "no model class here weights the inputs of its experts",
    "moe_latent_size": "no model class here has experts of another hidden size",
    "moe_extended_tp": "Megatron has replaced it by expert-tensor-parallel-size",
    "moe_enable_routing_replay": "the trainer's flag is use-routing-replay",
    "overlap_moe_expert_parallel_comm": "it needs Megatron's own training loop",
}
"""Reason why a setting of Megatron is refused, by name."""
ROUTER_TYPES = ("fp32", "fp64")
"""Types in which a router computes its scores."""
READ = (
    "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_bias_update_rate",
    "moe_router_dtype", "moe_grouped_gemm", "moe_router_fusion", "moe_layer_recompute",
)  # fmt: skip
"""Megatron's settings that have their effect, besides those of the architecture."""


def with_experts(architecture: Architecture, dense: ModuleSpec, *, transformer_engine: bool) -> ModuleSpec:
    """Return `dense`, changed: its MLP is a mixture of experts, which run one after the other."""
    assert architecture.experts is not None
    count, parts = architecture.experts.count, dense.submodules
    if transformer_engine:
        mixed = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(num_experts=count)
        # The dense layer's norm is a part of its first linear layer.
        parts.pre_mlp_layernorm = mixed.submodules.pre_mlp_layernorm
    else:
        # The router asks for Transformer Engine's kernel by a name that exists only with it, and accepts None.
        moe_utils.te_general_gemm = None
        mixed = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=count, normalization="RMSNorm")
    parts.mlp = mixed.submodules.mlp
    return dense


def keep_float32(model: torch.nn.Module) -> None:
    """Make the routers' biases float32 again, which Megatron does only in the first forward pass."""
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module._maintain_float32_expert_bias()


def expert_config(architecture: Architecture, flags: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of Megatron's config for the experts; nothing for a dense model.

    flags: the user's, by Megatron's names. Raises InvalidValue for settings with which log-probs would not be exact,
    and for invalid coefficients of auxiliary losses.
    """
    if architecture.experts is None:
        return {}
    BalanceLosses.of(flags)  # raises InvalidValue
    for name, reason in REFUSED.items():
        if flags.get(name):
            raise InvalidValue(f"--{name.replace('_', '-')} {flags[name]}: {reason}. Leave it out")
    router_type = flags.get("moe_router_dtype") or ROUTER_TYPES[0]
    if router_type not in ROUTER_TYPES:
        raise InvalidValue(f"--moe-router-dtype {router_type}: it is {' or '.join(ROUTER_TYPES)}")
    if flags.get("moe_router_fusion") and not has_transformer_engine():
        raise InvalidValue("--moe-router-fusion needs Transformer Engine, which is not installed. Leave it out")
    rate = flags.get("moe_router_bias_update_rate") or 0.0
    if rate and not architecture.experts.biased:
        raise InvalidValue(
            f"--moe-router-bias-update-rate {rate}: routers of {architecture.model_class} have no bias. Leave it out"
        )
    experts, grouped = architecture.experts, architecture.experts.groups > 1
    fields: dict[str, object] = {
        **experts.as_flags(architecture.num_layers),
        "moe_router_num_groups": experts.groups if grouped else None,
        "moe_router_group_topk": experts.groups_per_token if grouped else None,
        # A step moves the bias only if the user asks for it; Megatron's default is 0.001.
        "moe_router_bias_update_rate": rate,
        # The trainer adds its own losses: Megatron's depend on the number of ranks.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_z_loss_coeff": None,
        "moe_router_dtype": router_type,
        "moe_grouped_gemm": False,  # with it, Megatron gives the experts other parameters; see `GroupedExperts`
        "moe_token_dispatcher_type": _dispatcher(flags),
        **WITHOUT,
    }
    ignored = [name for name in IGNORED if flags.get(name) and flags[name] != fields.get(name)]
    if ignored:
        logger.warning("without effect for experts: %s", ", ".join(ignored))
    return fields


def _dispatcher(flags: Mapping[str, object]) -> str:
    """Return the name of Megatron's dispatcher of tokens.

    The first needs no CUDA stream, and sends nothing if each rank has all experts of a layer. If not, it would need the
    same number of tokens on each rank.
    """
    axes = ("expert_model_parallel_size", "expert_tensor_parallel_size")
    return "allgather" if all((flags.get(axis) or 1) == 1 for axis in axes) else "alltoall"
