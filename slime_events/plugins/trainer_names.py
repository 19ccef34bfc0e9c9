"""`TRAINER_NAMES`: what files written for slime's trainer may import, by module: name and its target here."""

_HERE = "actors.megatron.slime_names"
_OWN = "actors.megatron.own_model"
TRAINER_NAMES: dict[str, dict[str, str]] = {
    "slime.utils.mask_utils": {
        "MultiTurnLossMaskGenerator": "slime_events.plugins.loss_masks:MultiTurnLossMaskGenerator",
    },
    "slime.utils.ppo_utils": {
        "calculate_log_probs_and_entropy": f"{_HERE}:calculate_log_probs_and_entropy",
        "compute_approx_kl": "slime_events.algorithms.objective:approx_kl",
        "compute_cispo_loss": "slime_events.algorithms.estimators.cispo:cispo_loss",
        "compute_policy_loss": "slime_events.algorithms.clipped_loss:clipped_policy_loss",
        "get_grpo_returns": f"{_HERE}:get_grpo_returns",
    },
    "slime.backends": {},
    "slime.backends.megatron_utils": {},
    "slime.backends.megatron_utils.loss": {
        **{
            name: f"{_HERE}:{name}"
            for name in (
                "get_log_probs_and_entropy",
                "get_responses",
                "policy_loss_function",
                "sft_loss_function",
            )
        },
        "icepop_function": "slime_events.algorithms.mis:icepop_function",
        "vanilla_tis_function": "slime_events.algorithms.mis:vanilla_tis_function",
    },
    "slime.backends.megatron_utils.model_provider": {"get_model_provider_func": f"{_OWN}:get_model_provider_func"},
    "megatron.training": {"get_args": f"{_OWN}:get_args"},
    "megatron.training.global_vars": {"get_args": f"{_OWN}:get_args"},
    "megatron.training.arguments": {
        "core_transformer_config_from_args": f"{_OWN}:core_transformer_config_from_args",
    },
    "slime.backends.megatron_utils.cp_utils": {
        name: f"{_HERE}:{name}" for name in ("all_gather_with_cp", "get_sum_of_sample_mean", "slice_log_prob_with_cp")
    },
}

_MIS = "train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
_LOSS = "slime.backends.megatron_utils.loss"
TRAINER_PATHS: dict[str, str] = {
    **{f"{_LOSS}.{name}": target for name, target in TRAINER_NAMES[_LOSS].items()},
    **dict.fromkeys((_MIS, f"examples.{_MIS}"), "slime_events.algorithms.mis:compute_mis_weights_with_cp"),
}
"""slime's dotted paths of such functions on a command line, its example's among them."""
