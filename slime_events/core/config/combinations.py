"""Rules for settings that are invalid or exclude each other; each violation gives a sentence."""

import re
from collections.abc import Iterator

from schemas.errors import InvalidValue
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.evaluation import EvalSet, name_problem, sampling_problems
from slime_events.core.config.fields import settings_fields
from slime_events.core.config.outside_combinations import driven_by_client, made_by_agents, rewarded_outside
from slime_events.core.config.packing_combinations import packed_as_trees
from slime_events.core.config.per_source import quotas, shares
from slime_events.core.config.settings import TrainSettings

NOT_DETERMINISTIC = ("cross_entropy_loss_fusion", "tp_comm_overlap")
"""Settings that Megatron's deterministic mode refuses."""


def impossible(settings: TrainSettings) -> list[str]:
    """Return a sentence for each problem of derived settings (`derive`); empty if the run can start.

    The rules read only the settings, not the machine: see `missing_paths` for that.
    """
    drawn = (_ranges, _run, driven_by_client, _rollout, _rollout_function, made_by_agents, _data)
    trained = (_algorithm, _distillation, _trainer, packed_as_trees)
    rules = (*drawn, rewarded_outside, *trained, _evaluation, _grading, _engines, _debug)
    return [problem for rule in rules for problem in rule(settings)]


def _ranges(settings: TrainSettings) -> Iterator[str]:
    for field in settings_fields():
        value = getattr(getattr(settings, field.component), field.name)
        if value is not None and field.above is not None and value <= field.above:
            yield f"{field.name} is {value}: it must be above {field.above}."
        if value is not None and field.least is not None and value < field.least:
            yield f"{field.name} is {value}: it cannot be below {field.least}."


def _run(settings: TrainSettings) -> Iterator[str]:
    run = settings.run
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run.run):
        yield (
            f"run is {run.run!r}: the name is part of NATS subjects, so it has 1 to 64 letters, digits, - and _ only."
        )
    if not 0 <= run.trace_share <= 1:
        yield f"trace_share is {run.trace_share}: it must be a share of groups, from 0 to 1."
    if run.archive_seconds <= 0:
        yield f"archive_seconds is {run.archive_seconds}: it must be above 0."
    if run.log_keep_steps is not None and run.archive_url is None:
        yield (
            f"log_keep_steps {run.log_keep_steps} needs archive_url: only the archive keeps the events that are "
            "removed."
        )
    if run.log_keep_steps is not None and settings.debug.debug_train_only:
        yield "log_keep_steps excludes debug_train_only: it waits for engines, and there are none."
    if run.nats_replicas not in (1, 3, 5):
        yield f"nats_replicas is {run.nats_replicas}: it must be 1, 3 or 5, so that a majority of the copies exists."
    if run.nats_replicas > 1 and not run.nats_url:
        yield f"nats_replicas {run.nats_replicas} needs a cluster's nats_url: a run's own NATS is a single server."


def _rollout(settings: TrainSettings) -> Iterator[str]:
    rollout = settings.rollout
    if rollout.rollout_temperature <= 0:
        yield (
            f"rollout_temperature is {rollout.rollout_temperature}: it must be above 0, because "
            "the trainer computes log-probs of logits / temperature."
        )
    if not 0 < rollout.rollout_top_p <= 1:
        yield f"rollout_top_p is {rollout.rollout_top_p}: it must be a probability above 0 and at most 1."
    if rollout.rollout_top_k != -1 and rollout.rollout_top_k < 1:
        yield f"rollout_top_k is {rollout.rollout_top_k}: it must be a number of tokens, or -1 for all."
    if rollout.max_staleness < 0:
        yield f"max_staleness is {rollout.max_staleness}: it cannot be below 0."
    drawn = rollout.over_sampling_batch_size
    if drawn is not None and drawn < rollout.rollout_batch_size:
        yield (
            f"over_sampling_batch_size {drawn} is below rollout_batch_size {rollout.rollout_batch_size}: a single "
            "top-up must be able to fill a step."
        )
    prompt, context = rollout.rollout_max_prompt_len, rollout.rollout_max_context_len
    if prompt is not None and context is not None and prompt >= context:
        yield f"rollout_max_prompt_len {prompt} leaves no room for a response in rollout_max_context_len {context}."
    steps, epochs = rollout.num_rollout, rollout.num_epoch
    if steps is None and epochs is None:
        yield "Neither num_rollout nor num_epoch is set: set one, or the run has no end."
    if steps is not None and epochs is not None:
        yield f"num_rollout {steps} and num_epoch {epochs} both set the end of the run: give one."
    if epochs is not None and settings.data.prompt_data is None and settings.data.data_source_path is None:
        yield f"num_epoch {epochs} needs prompt_data: prompts from producers have no epochs."


def _rollout_function(settings: TrainSettings) -> Iterator[str]:
    if settings.rollout.rollout_function_path is None:
        return
    excluded = {
        "supervised": settings.data.supervised,
        "load_debug_rollout_data": settings.debug.load_debug_rollout_data,
        "archive_reuse rollouts": settings.data.archive_reuse == "rollouts",
    }
    for name in [name for name, value in excluded.items() if value]:
        yield f"rollout_function_path excludes {name}: both define the samples of a step."


def _data(settings: TrainSettings) -> Iterator[str]:
    data = settings.data
    for read, text in ((shares, data.source_share), (quotas, data.source_quota)):
        try:
            read(text)
        except InvalidValue as error:
            yield f"{error}."
    for name in ("curriculum_new", "archive_share", "archive_min_pass_rate", "archive_max_pass_rate"):
        if not 0 <= getattr(data, name) <= 1:
            yield f"{name} is {getattr(data, name)}: it must be from 0 to 1."
    if data.archive_min_pass_rate > data.archive_max_pass_rate:
        yield (
            f"archive_min_pass_rate {data.archive_min_pass_rate} is above archive_max_pass_rate "
            f"{data.archive_max_pass_rate}: the range is empty."
        )
    if data.archive_where is not None and data.archive_prompts is None:
        yield "archive_where needs archive_prompts: the run to select from."
    if data.buffer_filter_path is not None and data.archive_prompts is None and data.data_source_path is None:
        yield (
            "buffer_filter_path needs archive_prompts or data_source_path. Without them, surplus groups are "
            "trained first "
            "come, first served."
        )
    if data.data_source_path is not None and (data.archive_prompts or data.prompt_sampler != "file"):
        yield "data_source_path excludes archive_prompts and prompt_sampler: the data source selects the prompts."
    if data.prompt_sampler == "curriculum" and data.prompt_data is None:
        yield "prompt_sampler curriculum needs prompt_data: it selects rows of that file."
    if data.archive_reuse == "rollouts" and settings.algorithm.keep_old_actor:
        yield (
            "keep_old_actor excludes archive_reuse rollouts: another run has the weights that made the recorded "
            "rollouts."
        )
    if data.supervised:
        yield from _supervised(settings)
    if data.archive_reuse != "rollouts":
        return
    if data.archive_prompts is None:
        yield "archive_reuse rollouts needs archive_prompts: the run with the recorded rollouts."
    if data.prompt_data is None:
        yield "archive_reuse rollouts needs prompt_data: it is used once the recorded rollouts are too old."
    if not settings.algorithm.use_tis:
        yield (
            "archive_reuse rollouts needs use_tis: another policy made the recorded log-probs, and without the weights "
            "of TIS the gradient would be biased towards that policy."
        )


def _supervised(settings: TrainSettings) -> Iterator[str]:
    data, rollout = settings.data, settings.rollout
    if data.prompt_data is None:
        yield "supervised needs prompt_data: the chats to train on."
    if settings.algorithm.loss_type == "policy_loss":
        yield "supervised needs loss_type sft_loss or custom_loss: policy_loss needs rewards, and there are none."
    if rollout.n_samples_per_prompt != 1:
        yield f"supervised excludes n_samples_per_prompt {rollout.n_samples_per_prompt}: each row is a single sample."
    elsewhere = {
        "archive_prompts": data.archive_prompts,
        "data_source_path": data.data_source_path,
        "load_debug_rollout_data": settings.debug.load_debug_rollout_data,
        "debug_rollout_only": settings.debug.debug_rollout_only,
    }
    if others := [name for name, value in elsewhere.items() if value]:
        yield f"supervised excludes {', '.join(others)}: it trains on the rows of prompt_data."
    if settings.evaluation.eval_interval is not None:
        yield "supervised excludes eval_interval: an evaluation needs engines."


def _algorithm(settings: TrainSettings) -> Iterator[str]:
    algorithm = settings.algorithm
    if algorithm.kl_coef and algorithm.kl_loss_coef:
        yield (
            f"kl_coef {algorithm.kl_coef} and kl_loss_coef {algorithm.kl_loss_coef} would apply the KL "
            "penalty twice, in the "
            "reward and in the loss: set one."
        )
    if algorithm.use_rollout_logprobs and algorithm.use_tis:
        yield (
            "use_rollout_logprobs excludes use_tis: TIS corrects the difference between the log-probs of engine and "
            "trainer, and use_rollout_logprobs takes both from the engine."
        )
    yield from _loss(algorithm)
    if algorithm.eps_clip_c is not None and algorithm.eps_clip_c <= 1:
        yield f"eps_clip_c is {algorithm.eps_clip_c}: the dual clip bounds ratios above 1, so it must be above 1."
    if algorithm.tis_clip_low > algorithm.tis_clip:
        yield f"tis_clip_low {algorithm.tis_clip_low} is above tis_clip {algorithm.tis_clip}: the range is empty."
    for name in ("gamma", "lambd"):
        if not 0 <= getattr(algorithm, name) <= 1:
            yield f"{name} is {getattr(algorithm, name)}: it must be from 0 to 1."


def _loss(algorithm: AlgorithmSettings) -> Iterator[str]:
    kind, own = algorithm.loss_type, algorithm.custom_loss_function_path
    if kind == "custom_loss" and own is None:
        yield "loss_type custom_loss needs custom_loss_function_path: the function to minimise."
    if kind != "custom_loss" and own is not None:
        yield f"custom_loss_function_path needs loss_type custom_loss: {kind} does not call it."
    if kind == "policy_loss" and not algorithm.compute_advantages_and_returns:
        yield "disable_compute_advantages_and_returns excludes loss_type policy_loss, which needs advantages."
    if algorithm.custom_advantage_function_path and not algorithm.compute_advantages_and_returns:
        yield (
            "custom_advantage_function_path excludes disable_compute_advantages_and_returns, which skips the function."
        )
    if algorithm.custom_tis_function_path and not (algorithm.use_tis or algorithm.get_mismatch_metrics):
        yield "custom_tis_function_path needs use_tis or get_mismatch_metrics, which call it."
    terms = {
        "custom_tis_function_path": algorithm.custom_tis_function_path,
        "custom_pg_loss_reducer_function_path": algorithm.custom_pg_loss_reducer_function_path,
        "use_tis": algorithm.use_tis,
        "get_mismatch_metrics": algorithm.get_mismatch_metrics,
        "use_kl_loss": algorithm.use_kl_loss,
        "entropy_coef": algorithm.entropy_coef,
        "use_opsm": algorithm.use_opsm,
    }
    if kind == "sft_loss" and (excluded := [name for name, value in terms.items() if value]):
        yield f"loss_type sft_loss excludes {', '.join(excluded)}: they belong to the policy loss."


def _distillation(settings: TrainSettings) -> Iterator[str]:
    algorithm, teacher = settings.algorithm, settings.trainer.opd_teacher_load
    if not algorithm.use_opd:
        if algorithm.opd_type or teacher:
            setting = "opd_type" if algorithm.opd_type else "opd_teacher_load"
            yield f"{setting} needs use_opd: without it there is no teacher."
        return
    if algorithm.loss_type == "sft_loss" or not algorithm.compute_advantages_and_returns:
        yield "use_opd excludes sft_loss and disable_compute_advantages_and_returns: it changes the advantages."
    if algorithm.opd_type == "megatron" and not teacher:
        yield "opd_type megatron needs opd_teacher_load: the teacher's Hugging Face folder."
    if algorithm.opd_type != "sglang":
        return
    if teacher:
        yield "opd_type sglang excludes opd_teacher_load: the teacher runs behind rm_url, not in the trainer."
    rollout, own = settings.rollout, settings.reward.custom_rm_path or settings.debug.debug_train_only
    if not (own or rollout.custom_generate_function_path or rollout.rollout_sample_hook_path):
        yield (
            "opd_type sglang needs a function that sets sample.teacher_log_probs: custom_rm_path "
            "slime.rollout.on_policy_distillation.reward_func calls the engine at rm_url."
        )


def _trainer(settings: TrainSettings) -> Iterator[str]:
    trainer = settings.trainer
    if trainer.lr_warmup_fraction is not None and trainer.lr_warmup_iters:
        yield "lr_warmup_fraction and lr_warmup_iters both set the length of the warm-up: give one."
    if (trainer.lr_warmup_fraction or 0) >= 1:
        yield f"lr_warmup_fraction is {trainer.lr_warmup_fraction}: it must be a share of the run below 1."
    for name in ("only_train_params_name_list", "freeze_params_name_list"):
        yield from (f"{name}: {problem}." for problem in map(_no_expression, getattr(trainer, name)) if problem)
    if trainer.save_hf and (problem := _no_template(trainer.save_hf)):
        yield f"save_hf {problem}."
    if trainer.min_lr > trainer.lr:
        yield f"min_lr {trainer.min_lr} is above lr {trainer.lr}: the lowest rate would exceed the first."
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(trainer, name) < 1:
            yield f"{name} is {getattr(trainer, name)}: it must be at least 0 and below 1."
    groups, each = settings.rollout.rollout_batch_size, settings.rollout.n_samples_per_prompt
    size, steps = trainer.global_batch_size, trainer.num_steps_per_rollout
    counted = (
        size is None and settings.rollout.rollout_function_path is not None
    )  # the function defines the samples of a step
    if steps is None or (not counted and (size is None or size * steps != groups * each)):
        yield (
            "rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout does not hold: "
            f"{groups} x {each} = {groups * each}, and {size or '?'} x {steps or '?'} do not multiply to that."
        )
    if trainer.use_dynamic_batch_size and trainer.max_tokens_per_gpu is None:
        yield "use_dynamic_batch_size needs max_tokens_per_gpu: it packs micro batches up to that many tokens."
    for name in (name for name in NOT_DETERMINISTIC if trainer.deterministic and trainer.megatron.get(name)):
        yield f"deterministic_mode excludes {name}, which has no deterministic kernels: leave one of them out."
    for name in ("keep_weights", "keep_checkpoints"):
        if getattr(trainer, f"{name}_every") is not None and not getattr(trainer, name):
            yield f"{name}_every needs {name} above 0: {name} 0 keeps all."
    tensor, pipeline = trainer.tensor_model_parallel_size, trainer.pipeline_model_parallel_size
    copy = tensor * pipeline * trainer.context_parallel_size
    if min(copy, trainer.world_size) < 1:
        return
    if trainer.world_size % copy:
        yield (
            f"{trainer.world_size} trainer ranks (actor_num_nodes x actor_num_gpus_per_node) do not divide into model "
            f"copies of {tensor} x {pipeline} x {trainer.context_parallel_size} ranks (tensor x pipeline x context "
            "parallel)."
        )
    elif size and size % (copies := trainer.world_size // copy):
        yield f"global_batch_size {size} does not divide over {copies} copies of the model."


def _no_expression(text: str) -> str:
    """Return why a text is not a regular expression; empty if it is."""
    try:
        re.compile(text)
    except re.error as error:
        return f"{text!r} is not a regular expression: {error}"
    return ""


def _no_template(path: str) -> str:
    """Return why a path cannot be formatted for a step; empty if it can."""
    try:
        path.format(rollout_id=0)
    except (KeyError, IndexError, ValueError) as error:
        return f"{path} may contain {{rollout_id}} and no further braces: {error!r}"
    return ""


def _evaluation(settings: TrainSettings) -> Iterator[str]:
    evaluation = settings.evaluation
    pairs = evaluation.eval_prompt_data
    if evaluation.own_function and evaluation.eval_interval is None:
        yield "eval_function_path needs eval_interval: without it the function is never called."
    if evaluation.eval_interval is not None and not (pairs or evaluation.eval_sets or evaluation.own_function):
        yield (
            f"eval_interval {evaluation.eval_interval} needs eval_prompt_data or eval_config: the data to evaluate on."
        )
    if len(pairs) % 2:
        yield f"eval_prompt_data needs pairs of a name and a path: {pairs[-1]!r} has no path."
    names = pairs[0 : len(pairs) - len(pairs) % 2 : 2]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"eval_prompt_data names {name!r} twice: names must differ."
    for name in dict.fromkeys(names):
        if problem := name_problem(name):
            yield f"eval_prompt_data: set {name!r}: {problem}"
    room, longest = evaluation.eval_max_context_len, evaluation.eval_max_prompt_len
    if room is not None and longest is not None and longest >= room:
        yield f"eval_max_prompt_len {longest} leaves no room for an answer in eval_max_context_len {room}."
    flags, rollout = evaluation.over(EvalSet(path="")), settings.rollout
    training = EvalSet(path="", top_p=rollout.rollout_top_p, top_k=rollout.rollout_top_k)
    shown = list(sampling_problems(training, "eval_"))
    yield from (problem for problem in sampling_problems(flags, "eval_") if problem not in shown)
    shown = list(sampling_problems(flags))
    for name, dataset in evaluation.sets().items():
        where, problems = evaluation.where(name), sampling_problems(dataset)
        yield from (f"{where}: {problem}" for problem in problems if problem not in shown)


def _grading(settings: TrainSettings) -> Iterator[str]:
    reward = settings.reward
    rollout = settings.rollout
    may_grade = rollout.functions_may_grade or rollout.agents
    grades_nothing = settings.debug.debug_train_only or settings.run.tinker
    if not (reward.rm_type or reward.custom_rm_path or may_grade or grades_nothing):
        yield (
            "There is no grader: set rm_type (a prompt's metadata.rm_type overrides it), custom_rm_path, a "
            "custom_generate_function_path that sets sample.reward, or agents, which send rewards."
        )
    if reward.custom_reward_post_process_path and settings.rollout.custom_convert_samples_to_train_data_path:
        yield (
            "custom_reward_post_process_path excludes custom_convert_samples_to_train_data_path: the function "
            "that converts the samples sets their rewards."
        )
    if reward.group_rm and not reward.custom_rm_path:
        yield "group_rm needs custom_rm_path: the built-in graders grade one sample at a time."
    if "remote_rm" in (reward.rm_type or "") and not reward.custom_rm_path and not reward.rm_url:
        yield "rm_type remote_rm needs rm_url: the address of the reward model."
    if reward.rm_url and not reward.rm_url.startswith(("http://", "https://")):
        yield f"rm_url {reward.rm_url} is not an http:// or https:// address."


def _engines(settings: TrainSettings) -> Iterator[str]:
    engine, interval = settings.engine, settings.trainer.update_weights_interval
    if not engine.hf_checkpoint:
        yield "hf_checkpoint is not set: set it to the Hugging Face folder of the model to train."
    gpus, each = engine.rollout_num_gpus, engine.rollout_num_gpus_per_engine
    if gpus is not None and each > 0 and gpus % each:
        yield f"rollout_num_gpus {gpus} does not divide into engines of rollout_num_gpus_per_engine {each}."
    lag = 0 if settings.debug.debug_rollout_only else interval - 1
    if lag > max(0, settings.rollout.max_staleness):
        yield (
            f"update_weights_interval {interval} makes rollouts up to {lag} versions old, but "
            f"max_staleness is {settings.rollout.max_staleness}: increase it."
        )


def _debug(settings: TrainSettings) -> Iterator[str]:
    debug = settings.debug
    if debug.debug_rollout_only and debug.debug_train_only:
        yield "debug_rollout_only and debug_train_only exclude each other: set one."
    without = debug.load_debug_rollout_data or settings.data.supervised or settings.rollout.rollout_function_path
    if debug.debug_train_only and not without:
        yield (
            "debug_train_only needs load_debug_rollout_data, supervised or rollout_function_path: "
            "without engines, rollouts must come from dumps, rows of prompt_data or your function."
        )
    for name in ("save_debug_rollout_data", "save_debug_train_data"):
        if (template := getattr(debug, name)) and "{rollout_id}" not in template:
            yield f"{name} needs {{rollout_id}} in its path: each step has its own file."
    part = debug.load_debug_rollout_data_subsample
    if part is not None and not debug.load_debug_rollout_data:
        yield "load_debug_rollout_data_subsample needs load_debug_rollout_data: it selects a share of those dumps."
    if part is not None and not 0 < part <= 1:
        yield f"load_debug_rollout_data_subsample is {part}: it must be above 0 and at most 1."
