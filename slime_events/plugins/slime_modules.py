"""`SLIME_MODULES`: modules and names that a file written for slime may import, and our homes for them.

`slime_compat.py` serves them. Targets are names that are imported on demand: a file with a reward function next to its
generate function is also imported by graders, which need no engine code.
"""

_GENERATE, _GRADERS, _PLUGINS = "serve_apps.generate", "slime_events.plugins.rewards", "slime_events.plugins"
_HELPERS, _FILTERS, _LOSSES = f"{_GRADERS}.slime_helpers", f"{_PLUGINS}.filters", "actors.megatron.slime_names"
_OWN_MODEL = "actors.megatron.own_model"
_ALGORITHMS, _PROMPTS = "slime_events.algorithms", "slime_events.loop.prompts"


def _of(home: str, names: str = "", **renamed: str) -> dict[str, str]:
    """Return slime's names to places in our module `home`. `renamed` maps slime's name to ours."""
    return {
        name: f"{home}:{ours}" for name, ours in (*zip(names.split(), names.split(), strict=True), *renamed.items())
    }


_CP = _of(_LOSSES, "all_gather_with_cp get_sum_of_sample_mean slice_log_prob_with_cp slice_with_cp")
SLIME_MODULES: dict[str, dict[str, str]] = {
    "slime": {},
    "slime.observability": {},
    "slime.observability.trace_utils": _of(
        f"{_PLUGINS}.traces", "bind_trace build_sglang_meta_trace_attrs trace_event trace_function trace_span"
    ),
    "slime.utils": {},
    "slime.utils.async_utils": _of(f"{_PLUGINS}.slime_utils", "get_async_loop run"),
    "slime.utils.data": _of(f"{_PROMPTS}.dataset", "Dataset"),
    "slime.utils.eval_config": _of(
        f"{_PLUGINS}.eval_datasets", "EvalDatasetConfig build_eval_dataset_configs ensure_dataset_list"
    ),
    "slime.utils.http_utils": {
        **_of(f"{_GENERATE}.slime_compat", "get post"),
        **_of(
            f"{_PLUGINS}.slime_hosts",
            "find_available_port get_host_info init_http_client is_port_available run_router terminate_process",
            _wrap_ipv6="wrap_ipv6",
        ),
    },
    "slime.utils.mask_utils": _of(f"{_PLUGINS}.loss_masks", "MultiTurnLossMaskGenerator"),
    "slime.utils.misc": {
        **_of(f"{_PLUGINS}.loader", "load_function"),
        **_of(f"{_PLUGINS}.slime_utils", "SingletonMeta should_run_periodic_action"),
        **_of(f"{_PLUGINS}.slime_hosts", "exec_command get_current_node_ip get_free_port"),
    },
    "slime.utils.ppo_utils": {
        **_of(
            _LOSSES,
            "calculate_log_probs_and_entropy compute_entropy_from_logits compute_gspo_kl compute_log_probs "
            "compute_opsm_mask get_advantages_and_returns get_grpo_returns get_reinforce_plus_plus_returns "
            "get_reinforce_plus_plus_baseline_advantages",
        ),
        **_of(f"{_ALGORITHMS}.objective", compute_approx_kl="approx_kl"),
        **_of(f"{_ALGORITHMS}.estimators.cispo", compute_cispo_loss="cispo_loss"),
        **_of(f"{_ALGORITHMS}.clipped_loss", compute_policy_loss="clipped_policy_loss"),
    },
    "slime.utils.processing_utils": _of(
        f"{_PLUGINS}.slime_utils",
        "build_processor_kwargs encode_image_for_rollout_engine load_processor load_tokenizer process_vision_info",
    ),
    "slime.utils.types": {
        **_of(f"{_PLUGINS}.rollout_types", "RolloutBatch"),
        **_of(f"{_PLUGINS}.sample", "Sample"),
    },
    "slime.backends": {},
    "slime.backends.megatron_utils": {},
    "slime.backends.megatron_utils.cp_utils": _CP,
    "slime.backends.megatron_utils.model_provider": _of(_OWN_MODEL, "get_model_provider_func"),
    "megatron.training": _of(_OWN_MODEL, "get_args"),
    "megatron.training.global_vars": _of(_OWN_MODEL, "get_args"),
    "megatron.training.arguments": _of(_OWN_MODEL, "core_transformer_config_from_args"),
    "slime.backends.megatron_utils.loss": {
        **_of(_LOSSES, "get_log_probs_and_entropy get_responses policy_loss_function sft_loss_function"),
        **_of(f"{_ALGORITHMS}.mis", "icepop_function vanilla_tis_function"),
        **_CP,
    },
    "slime.rollout": {},
    "slime.rollout.base_types": _of(
        f"{_PLUGINS}.rollout_types", "RolloutFnEvalOutput RolloutFnTrainOutput call_rollout_fn"
    ),
    "slime.rollout.sglang_rollout": {
        **_of(f"{_GENERATE}.generate_state", "GenerateState"),
        **_of(f"{_GENERATE}.slime_compat", "get get_model_url post"),
        **_of(f"{_GENERATE}.slime_rollout", "abort generate generate_and_rm generate_and_rm_group"),
        **_of(f"{_GENERATE}.hooks", "apply_rollout_sample_hooks"),
        **_of(
            "serve_apps.rollout_function.slime_loop",
            "eval_rollout eval_rollout_single_dataset generate_rollout generate_rollout_async",
        ),
        **_of(f"{_GRADERS}.rm_hub", "async_rm batched_async_rm"),
        **_of(f"{_FILTERS}.gathering", "MetricGatherer call_dynamic_filter should_drop_dynamic_filter_output"),
        **_of(f"{_PLUGINS}.eval_datasets", "EvalDatasetConfig"),
        **_of(f"{_PLUGINS}.loader", "load_function"),
        **_of(f"{_PLUGINS}.rollout_types", "RolloutFnEvalOutput RolloutFnTrainOutput"),
        **_of(f"{_PLUGINS}.sample", "Sample"),
        **_of(f"{_PLUGINS}.slime_utils", "encode_image_for_rollout_engine load_processor load_tokenizer run"),
        **_of(f"{_PROMPTS}.dataset", "Dataset"),
    },
    "slime.rollout.sglang_streaming_rollout": _of(f"{_GENERATE}.slime_rollout", generate_streaming="generate"),
    "slime.rollout.fully_async_rollout": _of(
        "serve_apps.rollout_function.slime_loop", generate_rollout_fully_async="generate_rollout"
    ),
    "slime.rollout.on_policy_distillation": _of(f"{_GRADERS}.teacher", "post_process_rewards reward_func"),
    "slime.rollout.data_source": {
        **_of(f"{_PROMPTS}.data_source", "DataSource RolloutDataSource RolloutDataSourceWithBuffer"),
        **_of(f"{_PROMPTS}.buffer_filter", "pop_first"),
    },
    "slime.rollout.sample_hooks": _of(f"{_GENERATE}.hooks", "apply_rollout_sample_hooks set_current_rollout_id"),
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {
        **_of(f"{_FILTERS}.base_types", "DynamicFilterOutput"),
        **_of(f"{_FILTERS}.gathering", "MetricGatherer call_dynamic_filter should_drop_dynamic_filter_output"),
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": _of(
        f"{_FILTERS}.dynamic_sampling", "check_reward_nonzero_std check_reward_nonzero_std_with_fallback"
    ),
    "slime.rollout.rm_hub": {
        **_of(f"{_GRADERS}.rm_hub", "async_rm batched_async_rm remote_rm"),
        **_of(_HELPERS, "extract_boxed_answer f1_score grade_answer_verl", compute_score_dapo="compute_score"),
        **_of(f"{_GRADERS}.gpqa", "compute_gpqa_reward"),
        **_of(f"{_GRADERS}.deepscaler", "get_deepscaler_rule_based_reward"),
        **_of(f"{_PLUGINS}.loader", "load_function"),
        **_of(f"{_PLUGINS}.sample", "Sample"),
    },
    "slime.rollout.rm_hub.deepscaler": {
        **_of(_HELPERS, "extract_answer grade_answer_mathd grade_answer_sympy"),
        **_of(f"{_GRADERS}.deepscaler", "get_deepscaler_rule_based_reward"),
    },
    "slime.rollout.rm_hub.f1": {**_of(_HELPERS, "f1_score"), **_of(f"{_GRADERS}.f1", "normalize_answer")},
    "slime.rollout.rm_hub.gpqa": {
        **_of(f"{_GRADERS}.gpqa", "compute_gpqa_reward", _normalize_text="_plain"),
        **_of(
            _HELPERS,
            "DEFAULT_VALID_LETTERS",
            _extract_letter_from_response="extract_letter",
            _strip_chain_of_thought="strip_chain_of_thought",
        ),
    },
    "slime.rollout.rm_hub.ifbench": _of(f"{_GRADERS}.ifbench.grader", "compute_ifbench_reward"),
    "slime.rollout.rm_hub.math_dapo_utils": _of(
        _HELPERS,
        "compute_score is_correct_minerva is_correct_strict_box normalize_final_answer REMOVED_EXPRESSIONS "
        "SUBSTITUTIONS verify",
        last_boxed_only_string="last_box",
        remove_boxed="inside_box",
    ),
    "slime.rollout.rm_hub.math_utils": {
        **_of(
            _HELPERS,
            "BAD_REGEXES BAD_SUBSTRINGS TUPLE_CHARS extract_answer extract_boxed_answer grade_answer_mathd "
            "grade_answer_sympy grade_answer_verl",
            count_unknown_letters_in_expr="unknown_letters",
            last_boxed_only_string="last_box_or_fbox",
            remove_boxed="inside_box_or_none",
            should_allow_eval="may_be_parsed",
            _inject_implicit_mixed_number="with_mixed_numbers",
            _is_float="is_float",
            _is_int="is_whole",
            _normalize="normalized",
            _str_to_int="to_int",
            _sympy_parse="parsed",
        ),
        **_of(
            f"{_GRADERS}.math",
            are_equal_under_sympy="_equal_under_sympy",
            split_tuple="_elements",
            _is_frac="_is_fraction",
            _parse_latex="_plain_of_latex",
            _str_is_int="_is_integer",
            _strip_properly_formatted_commas="_without_thousands",
        ),
        **_of(f"{_GRADERS}.mathd", "mathd_normalize_answer", _strip_string="_one_spelling"),
    },
}

NOT_HERE: dict[str, str] = {
    "slime.agent": "an agent needs no adapter: `train --agents --gateway` gives it a base URL, which answers the chat, "
    "responses and messages APIs, and keeps its turns (docs/agents.md)",
}
"""Packages of slime that have no counterpart, and what to use instead."""

_MIS = "train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
_ON_COMMAND_LINES = (
    "slime.rollout.filter_hub.dynamic_sampling_filters",
    "slime.rollout.on_policy_distillation",
    "slime.backends.megatron_utils.loss",
)
SLIME_PATHS: dict[str, str] = {
    **{f"{module}.{name}": target for module in _ON_COMMAND_LINES for name, target in SLIME_MODULES[module].items()},
    **dict.fromkeys((_MIS, f"examples.{_MIS}"), f"{_ALGORITHMS}.mis:compute_mis_weights_with_cp"),
}
"""slime's dotted paths as its command lines and its example have them, to our functions."""
