"""The table of slime's names: which file of ours answers each module that a file written for slime may import.

`aliases.py` serves the names. A file that exists only for them is in a folder `slime`, in the room whose code it needs.
Files are named here and imported on demand: a file with a reward function next to its generate function is also
imported by graders, which need no engine code.
"""

ANSWERED_BY: dict[str, dict[str, str]] = {
    "slime": {},
    "slime.observability": {},
    "slime.observability.trace_utils": {
        "slime_events.plugins.slime.traces": (
            "bind_trace build_sglang_meta_trace_attrs trace_event trace_function trace_span"
        ),
    },
    "slime.utils": {},
    "slime.utils.async_utils": {
        "slime_events.plugins.slime.helpers": "get_async_loop run",
    },
    "slime.utils.data": {
        "slime_events.loop.prompts.slime.dataset": "Dataset",
    },
    "slime.utils.eval_config": {
        "slime_events.plugins.slime.eval_datasets": "EvalDatasetConfig build_eval_dataset_configs ensure_dataset_list",
    },
    "slime.utils.http_utils": {
        "serve_apps.rollouts.generate.slime.requests": "get post",
        "slime_events.plugins.slime.hosts": (
            "find_available_port get_host_info init_http_client is_port_available run_router terminate_process "
            "_wrap_ipv6=wrap_ipv6"
        ),
    },
    "slime.utils.mask_utils": {
        "slime_events.plugins.loss_masks": "MultiTurnLossMaskGenerator",
    },
    "slime.utils.misc": {
        "slime_events.plugins.loader": "load_function",
        "slime_events.plugins.slime.helpers": "SingletonMeta should_run_periodic_action",
        "slime_events.plugins.slime.hosts": "exec_command get_current_node_ip get_free_port",
    },
    "slime.utils.ppo_utils": {
        "actors.megatron.slime.losses": (
            "calculate_log_probs_and_entropy compute_entropy_from_logits compute_gspo_kl compute_log_probs "
            "compute_opsm_mask get_advantages_and_returns get_grpo_returns get_reinforce_plus_plus_returns "
            "get_reinforce_plus_plus_baseline_advantages"
        ),
        "slime_events.algorithms.objective": "compute_approx_kl=approx_kl",
        "slime_events.algorithms.estimators.cispo": "compute_cispo_loss=cispo_loss",
        "slime_events.algorithms.clipped_loss": "compute_policy_loss=clipped_policy_loss",
    },
    "slime.utils.processing_utils": {
        "slime_events.plugins.slime.helpers": (
            "build_processor_kwargs encode_image_for_rollout_engine load_processor load_tokenizer process_vision_info"
        ),
    },
    "slime.utils.types": {
        "slime_events.plugins.rollout_types": "RolloutBatch",
        "slime_events.plugins.sample": "Sample",
    },
    "slime.backends": {},
    "slime.backends.megatron_utils": {},
    "slime.backends.megatron_utils.cp_utils": {
        "actors.megatron.slime.losses": (
            "all_gather_with_cp get_logits_and_tokens_offset_with_cp get_sum_of_sample_mean slice_log_prob_with_cp "
            "slice_with_cp"
        ),
    },
    "slime.backends.megatron_utils.model_provider": {
        "actors.megatron.own_model": "get_model_provider_func",
    },
    "megatron.training": {
        "actors.megatron.own_model": "get_args",
    },
    "megatron.training.global_vars": {
        "actors.megatron.own_model": "get_args",
    },
    "megatron.training.arguments": {
        "actors.megatron.own_model": "core_transformer_config_from_args",
    },
    "slime.backends.megatron_utils.loss": {
        "actors.megatron.slime.losses": (
            "get_log_probs_and_entropy get_responses policy_loss_function sft_loss_function all_gather_with_cp "
            "get_sum_of_sample_mean slice_log_prob_with_cp slice_with_cp"
        ),
        "slime_events.algorithms.mis": "icepop_function vanilla_tis_function",
    },
    "slime.rollout": {},
    "slime.rollout.base_types": {
        "slime_events.plugins.rollout_types": "RolloutFnEvalOutput RolloutFnTrainOutput call_rollout_fn",
    },
    "slime.rollout.sglang_rollout": {
        "serve_apps.rollouts.generate.slime.generate_state": "GenerateState",
        "serve_apps.rollouts.generate.slime.requests": "get get_model_url post",
        "serve_apps.rollouts.generate.slime.rollout": "abort generate generate_and_rm generate_and_rm_group",
        "serve_apps.rollouts.generate.hooks": "apply_rollout_sample_hooks",
        "serve_apps.rollouts.rollout_function.slime.loop": (
            "eval_rollout eval_rollout_single_dataset generate_rollout generate_rollout_async"
        ),
        "slime_events.plugins.rewards.slime.rm_hub": "async_rm batched_async_rm",
        "slime_events.plugins.filters.gathering": (
            "MetricGatherer call_dynamic_filter should_drop_dynamic_filter_output"
        ),
        "slime_events.plugins.slime.eval_datasets": "EvalDatasetConfig",
        "slime_events.plugins.loader": "load_function",
        "slime_events.plugins.rollout_types": "RolloutFnEvalOutput RolloutFnTrainOutput",
        "slime_events.plugins.sample": "Sample",
        "slime_events.plugins.slime.helpers": "encode_image_for_rollout_engine load_processor load_tokenizer run",
        "slime_events.loop.prompts.slime.dataset": "Dataset",
    },
    "slime.rollout.sglang_streaming_rollout": {
        "serve_apps.rollouts.generate.slime.rollout": "generate_streaming=generate",
    },
    "slime.rollout.fully_async_rollout": {
        "serve_apps.rollouts.rollout_function.slime.loop": "generate_rollout_fully_async=generate_rollout",
    },
    "slime.rollout.on_policy_distillation": {
        "slime_events.plugins.rewards.teacher": "post_process_rewards reward_func",
    },
    "slime.rollout.data_source": {
        "slime_events.loop.prompts.slime.data_source": "DataSource RolloutDataSource RolloutDataSourceWithBuffer",
        "slime_events.loop.prompts.buffer_filter": "pop_first",
    },
    "slime.rollout.sample_hooks": {
        "serve_apps.rollouts.generate.hooks": "apply_rollout_sample_hooks set_current_rollout_id",
    },
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {
        "slime_events.plugins.filters.base_types": "DynamicFilterOutput",
        "slime_events.plugins.filters.gathering": (
            "MetricGatherer call_dynamic_filter should_drop_dynamic_filter_output"
        ),
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": {
        "slime_events.plugins.filters.dynamic_sampling": (
            "check_reward_nonzero_std check_reward_nonzero_std_with_fallback"
        ),
    },
    "slime.rollout.rm_hub": {
        "slime_events.plugins.rewards.slime.rm_hub": "async_rm batched_async_rm remote_rm",
        "slime_events.plugins.rewards.slime.grader_helpers": (
            "extract_boxed_answer f1_score grade_answer_verl compute_score_dapo=compute_score"
        ),
        "slime_events.plugins.rewards.gpqa": "compute_gpqa_reward",
        "slime_events.plugins.rewards.deepscaler": "get_deepscaler_rule_based_reward",
        "slime_events.plugins.loader": "load_function",
        "slime_events.plugins.sample": "Sample",
    },
    "slime.rollout.rm_hub.deepscaler": {
        "slime_events.plugins.rewards.slime.grader_helpers": "extract_answer grade_answer_mathd grade_answer_sympy",
        "slime_events.plugins.rewards.deepscaler": "get_deepscaler_rule_based_reward",
    },
    "slime.rollout.rm_hub.f1": {
        "slime_events.plugins.rewards.slime.grader_helpers": "f1_score",
        "slime_events.plugins.rewards.f1": "normalize_answer",
    },
    "slime.rollout.rm_hub.gpqa": {
        "slime_events.plugins.rewards.gpqa": "compute_gpqa_reward _normalize_text=_plain",
        "slime_events.plugins.rewards.slime.grader_helpers": (
            "DEFAULT_VALID_LETTERS _extract_letter_from_response=extract_letter "
            "_strip_chain_of_thought=strip_chain_of_thought"
        ),
    },
    "slime.rollout.rm_hub.ifbench": {
        "slime_events.plugins.rewards.ifbench.grader": "compute_ifbench_reward",
    },
    "slime.rollout.rm_hub.math_dapo_utils": {
        "slime_events.plugins.rewards.slime.grader_helpers": (
            "compute_score is_correct_minerva is_correct_strict_box normalize_final_answer REMOVED_EXPRESSIONS "
            "SUBSTITUTIONS verify last_boxed_only_string=last_box remove_boxed=inside_box"
        ),
    },
    "slime.rollout.rm_hub.math_utils": {
        "slime_events.plugins.rewards.slime.grader_helpers": (
            "BAD_REGEXES BAD_SUBSTRINGS TUPLE_CHARS extract_answer extract_boxed_answer grade_answer_mathd "
            "grade_answer_sympy grade_answer_verl count_unknown_letters_in_expr=unknown_letters "
            "last_boxed_only_string=last_box_or_fbox remove_boxed=inside_box_or_none "
            "should_allow_eval=may_be_parsed _inject_implicit_mixed_number=with_mixed_numbers _is_float=is_float "
            "_is_int=is_whole _normalize=normalized _str_to_int=to_int _sympy_parse=parsed"
        ),
        "slime_events.plugins.rewards.math": (
            "are_equal_under_sympy=_equal_under_sympy split_tuple=_elements _is_frac=_is_fraction "
            "_parse_latex=_plain_of_latex _str_is_int=_is_integer "
            "_strip_properly_formatted_commas=_without_thousands"
        ),
        "slime_events.plugins.rewards.mathd": "mathd_normalize_answer _strip_string=_one_spelling",
    },
}
"""slime's modules, to our modules, each with the names that it answers: `theirs=ours` where the names differ."""


def _targets(answers: dict[str, str]) -> dict[str, str]:
    """Return slime's names of a module, to our `module:name`."""
    targets = {}
    for home, names in answers.items():
        for name in names.split():
            theirs, _, ours = name.partition("=")
            targets[theirs] = f"{home}:{ours or theirs}"
    return targets


SLIME_MODULES: dict[str, dict[str, str]] = {module: _targets(answers) for module, answers in ANSWERED_BY.items()}
"""slime's modules, to their names and our `module:name` of each."""

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
    **dict.fromkeys((_MIS, f"examples.{_MIS}"), "slime_events.algorithms.mis:compute_mis_weights_with_cp"),
}
"""slime's dotted paths as its command lines and its example have them, to our functions."""
