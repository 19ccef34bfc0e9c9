"""`idle`: settings that are set and have no effect in this run, with the reason.

Rules that depend on the estimator are in `slime_events/algorithms/idle_settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.tables import MEGATRON_CUDA, MEGATRON_IDLE

_MIS = (
    "tis_level tis_mode tis_lower_bound tis_upper_bound tis_batch_normalize "
    "use_rs rs_level rs_lower_bound rs_upper_bound rs_veto_threshold"
)
_GATEWAY = "gateway_tls_cert gateway_tls_key gateway_insecure gateway_allow_origin gateway_host_name"
_WANDB = "wandb_mode wandb_project wandb_team wandb_group wandb_run_id wandb_host wandb_dir wandb_always_use_train_step"


def idle(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each reason. settings: derived."""
    for component, names, is_used, reason in (*_loss_rules(settings), *_run_rules(settings)):
        values = getattr(settings, component)
        changed = [name for name in names.split() if getattr(values, name) != getattr(type(values)(), name)]
        if changed and not is_used:
            yield f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} no effect: {reason}."
    for name, reason in MEGATRON_IDLE.items():
        if name in settings.trainer.megatron:
            yield f"--{name.replace('_', '-')}: no effect; {reason}."
    yield from _evaluation_notes(settings)
    if settings.rollout.agents and settings.gateway.listens is None:
        yield "agents open sessions at a gateway, and this run has none: set gateway, or run `slime-events gateway`."


_Rule = tuple[str, str, object, str]
"""Component, names of settings, whether anything uses them (its truth value), and why nothing does."""


def _loss_rules(settings: TrainSettings) -> Iterator[_Rule]:
    algorithm = settings.algorithm
    own = algorithm.custom_loss_function_path or algorithm.custom_advantage_function_path
    kl = algorithm.use_kl_loss or algorithm.kl_coef
    yield "trainer", "ref_load", kl, "neither use_kl_loss nor kl_coef is set, so there is no reference model"
    mis = own or algorithm.custom_tis_function_path  # a function that may read all of them
    yield "algorithm", _MIS, mis, "they belong to MIS, and custom_tis_function_path is not set"
    yield "algorithm", "kl_loss_coef", algorithm.use_kl_loss, "use_kl_loss is not set"


def _run_rules(settings: TrainSettings) -> Iterator[_Rule]:
    data, rollout, trainer, metrics = settings.data, settings.rollout, settings.trainer, settings.metrics
    dynamic = trainer.use_dynamic_batch_size
    yield "trainer", "max_tokens_per_gpu log_probs_max_tokens_per_gpu", dynamic, "use_dynamic_batch_size is not set"
    yield "trainer", "micro_batch_size", not dynamic, "use_dynamic_batch_size packs micro batches by tokens"
    by_work = dynamic or trainer.balance_data or trainer.micro_batch_size == 1
    yield "trainer", "balance_by_flops", by_work, "neither use_dynamic_batch_size nor balance_data is set"
    yield (
        "trainer",
        "async_save save_hf save_epoch save_last",
        trainer.save_interval,
        "save_interval is not set (it has a default on GPUs)",
    )
    yield "trainer", "load_optim", trainer.load, "load is not set"
    partial = rollout.partial_rollout
    yield "rollout", "mask_offpolicy_in_partial_rollout", partial, "partial_rollout is not set"
    yield "data", "loss_mask_type", data.supervised, "supervised is not set"
    seconds = "agent_turn_seconds agent_session_seconds agent_idle_seconds agent_idle"
    limits = f"agent_credit {seconds} agent_tokens_in_flight agent_turns_per_minute"
    yield "agents", limits, rollout.agents, "agents is not set"
    discounted = rollout.agents and settings.agents.agent_credit == "discounted"
    yield "agents", "agent_turn_discount", discounted, "agent_credit is not discounted"
    command = settings.agents.agent_command
    yield "agents", "agent_concurrency agent_timeout agent_env", command, "agent_command is not set"
    own = settings.evaluation.own_function
    yield "rollout", "custom_eval_rollout_log_function_path", not own, "your evaluation function logs for itself"
    yield "metrics", _WANDB, metrics.use_wandb, "use_wandb is not set"
    yield "gateway", _GATEWAY, settings.gateway.listens, "gateway is not set"
    board = metrics.use_tensorboard
    yield "metrics", "tb_project_name tb_experiment_name", board, "use_tensorboard is not set"


def _evaluation_notes(settings: TrainSettings) -> Iterator[str]:
    evaluation = settings.evaluation
    if evaluation.eval_sets and evaluation.eval_prompt_data:
        yield "eval_prompt_data has no effect: eval_config or eval_sets replaces it."
    if evaluation.eval_interval is None and (evaluation.eval_sets or evaluation.eval_prompt_data):
        unused = "eval_sets is" if evaluation.eval_sets else "eval_prompt_data is"
        yield f"{unused} never used: eval_interval is not set."
    for name, dataset in evaluation.eval_sets.items():
        if dataset.rm_type and settings.reward.custom_rm_path and not dataset.custom_rm_path:
            yield (
                f"{evaluation.where(name)}: custom_rm_path {settings.reward.custom_rm_path} grades it; its "
                f"rm_type {dataset.rm_type} is only in the metadata."
            )


def idle_on_cpu(settings: TrainSettings) -> list[str]:
    """Return a sentence about the settings that have no effect on the CPU, if there are any."""
    unused = sorted(MEGATRON_CUDA & settings.trainer.megatron.keys())
    unused += ["colocate"] if settings.engine.colocate else []
    unused += ["sequence_parallel"] if settings.trainer.sequence_parallel else []
    return [f"{', '.join(unused)}: no effect on the CPU."] if unused else []


def crowded(settings: TrainSettings, cores: int) -> list[str]:
    """Return a sentence if a machine has more trainer ranks than cores, for a run on the CPU."""
    ranks = settings.trainer.actor_num_gpus_per_node
    if ranks <= cores:
        return []
    return [
        f"{ranks} trainer ranks on {cores} cores: they share the cores, so a step takes longer than with {cores} ranks "
        f"(--actor-num-gpus-per-node {cores})."
    ]
