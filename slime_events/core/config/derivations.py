"""Settings that are derived from others, by slime's rules for unset settings and by our own."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slime_events.core.config.algorithm import AlgorithmSettings, TeacherType
from slime_events.core.config.data import OUTSIDE, DataSettings
from slime_events.core.config.engine import Device, EngineSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.rollout import RolloutSettings, staleness_bound
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings

LOADED = "rollouts are loaded (load_debug_rollout_data)"
_GENERATION = {
    "data": "prompt_data prompt_sampler data_source_path archive_prompts archive_where archive_reuse "
    "buffer_filter_path",
    "evaluation": "eval_interval eval_function_path eval_prompt_data eval_config eval_sets",
    "rollout": "rollout_function_path over_sampling_batch_size dynamic_sampling_filter_path partial_rollout "
    "mask_offpolicy_in_partial_rollout custom_generate_function_path rollout_sample_hook_path "
    "rollout_sample_filter_path rollout_all_samples_process_path custom_rollout_log_function_path "
    "custom_eval_rollout_log_function_path",
}
"""Component to the settings that have no effect in a run on loaded rollouts."""


def _debug(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """Return the settings of the half that runs, and a sentence for each setting without effect."""
    debug, notes = settings.debug, list[str]()
    if debug.dump_details:
        folder = debug.dump_details.rstrip("/")
        debug = replace(
            debug,
            save_debug_rollout_data=debug.save_debug_rollout_data or f"{folder}/rollout_data/{{rollout_id}}.pt",
            save_debug_train_data=debug.save_debug_train_data or f"{folder}/train_data/{{rollout_id}}_{{rank}}.pt",
        )
    for name in ("save_debug_rollout_data", "save_debug_train_data"):
        if (template := getattr(debug, name)) and "{rollout_id}" not in template:
            numbered = f"{Path(template).with_suffix('')}_{{rollout_id}}{Path(template).suffix}"
            debug = replace(debug, **{name: numbered})
            notes.append(f"{name} is {numbered}: each step has its own file.")
    if debug.debug_rollout_only and debug.save_debug_train_data:
        notes.append("save_debug_train_data has no effect: nothing is trained (debug_rollout_only).")
    if debug.load_debug_rollout_data:
        debug = replace(debug, debug_train_only=True)
        settings, unused = _without_generation(settings)
        if unused:
            notes.append(f"{', '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect: {LOADED}.")
    if debug.debug_rollout_only and settings.rollout.num_rollout:
        # The weights do not change: they are published at the start and, as in every run, at the end.
        trainer = replace(settings.trainer, update_weights_interval=settings.rollout.num_rollout, save_interval=None)
        settings = replace(settings, trainer=trainer)
    return replace(settings, debug=debug), notes


def _without_generation(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """Reset settings that draw, generate or filter rollouts. Returns the settings and the names that were set."""
    unused = []
    for group, words in _GENERATION.items():
        names = words.split()
        values = getattr(settings, group)
        defaults = {name: getattr(type(values)(), name) for name in names}
        unused += [name for name in names if getattr(values, name) != defaults[name]]
        settings = replace(settings, **{group: replace(values, **defaults)})
    return settings, [name for name in unused if name not in ("eval_prompt_data", "eval_config", "eval_sets")]


def _prompts(data: DataSettings) -> tuple[DataSettings, list[str]]:
    """Remove the prompt file if prompts are published to the run."""
    if data.prompt_data == OUTSIDE:
        return replace(data, prompt_data=None, rollout_global_dataset=False), []
    if data.prompt_data and not data.rollout_global_dataset:
        note = (
            "prompt_data is not read: rollout_global_dataset is off, so prompts are published to the run "
            "(`slime-events produce`) or come from data_source_path."
        )
        return replace(data, prompt_data=None), [note]
    return data, []


def derive(
    settings: TrainSettings, set_by_flag: Collection[tuple[str, str]] = ()
) -> tuple[TrainSettings, tuple[str, ...]]:
    """Return the settings with all derived values, and a sentence for each change. Idempotent.

    set_by_flag: (component, field) pairs; they are not changed. The result is not checked: a value that cannot be
    derived stays None, and `impossible` gives the reason.
    """
    settings, notes = _debug(settings)
    settings, more = _driven(settings, set_by_flag)
    data, no_file = _prompts(settings.data)
    settings = replace(settings, data=data)
    notes += [*more, *no_file]
    if settings.data.supervised:
        settings, more = _supervised(settings, set_by_flag)
        notes += more
    checkpoint = settings.engine.hf_checkpoint or settings.trainer.hf_checkpoint
    algorithm, rollout = settings.algorithm, settings.rollout
    if algorithm.eps_clip_high is None:
        algorithm = replace(algorithm, eps_clip_high=algorithm.eps_clip)
    if algorithm.use_opd:
        algorithm = replace(algorithm, opd_type=algorithm.opd_type or _teacher_type(settings))
    if rollout.n_samples_per_prompt == 1 and algorithm.grpo_std_normalization:
        algorithm = replace(algorithm, grpo_std_normalization=False)
        notes.append("grpo_std_normalization is off: a group of a single sample has no standard deviation.")
    lag = 0 if settings.debug.debug_rollout_only else settings.trainer.update_weights_interval - 1
    if rollout.max_staleness < lag and ("rollout", "max_staleness") not in set_by_flag:
        notes.append(
            f"max_staleness is {lag}: weights are published every {lag + 1} steps, so rollouts may be {lag} "
            "versions behind."
        )
        rollout = replace(rollout, max_staleness=lag)
    if note := _wider_bound(settings, rollout):
        notes.append(note)
    if rollout.rollout_max_prompt_len is None and rollout.rollout_max_context_len is not None:
        rollout = replace(rollout, rollout_max_prompt_len=rollout.rollout_max_context_len - 1)
    evaluation = _evaluation(settings.evaluation, settings)
    narrow = rollout.rollout_top_p != 1.0 or rollout.rollout_top_k > 0
    if narrow and (rollout.custom_generate_function_path or rollout.agents):
        notes.append(
            "rollout_top_p, rollout_top_k: for rollouts with several turns (custom_generate_function_path, agents), "
            "engine and trainer compute log-probs over the whole vocabulary, not over the truncated one."
        )
    notes += _teacher_notes(algorithm, rollout)
    trainer = replace(settings.trainer, hf_checkpoint=settings.trainer.hf_checkpoint or checkpoint)
    if trainer.sequence_parallel and trainer.tensor_model_parallel_size == 1:
        trainer = replace(trainer, sequence_parallel=False)
        notes.append("sequence_parallel is off: tensor_model_parallel_size is 1, so there is no sequence to split.")
    reward = settings.reward
    derived = replace(
        settings,
        algorithm=algorithm,
        rollout=rollout,
        evaluation=evaluation,
        engine=_engine(settings, checkpoint),
        trainer=_saves(_schedule(_batches(trainer, rollout), rollout), rollout, set_by_flag),
        reward=replace(reward, eval_reward_key=reward.eval_reward_key or reward.reward_key),
    )
    return derived, tuple(notes)


def _engine(settings: TrainSettings, checkpoint: str) -> EngineSettings:
    """Let engines serve the trainer's checkpoint, and report the experts of each token if the trainer uses these."""
    engine = settings.engine
    reports = {"enable_return_routed_experts": True} if settings.trainer.use_rollout_routing_replay else {}
    engine = replace(engine, hf_checkpoint=engine.hf_checkpoint or checkpoint, sglang={**engine.sglang, **reports})
    offloads = engine.offload or engine.offload_train or engine.offload_rollout
    return _with_turns(engine) if offloads and _has_both(settings) else engine


def _with_turns(engine: EngineSettings) -> EngineSettings:
    """Return the settings with both sides released in turns, unless one is set otherwise."""
    sides = ("offload_train", "offload_rollout")
    return replace(engine, **{side: True for side in sides if getattr(engine, side) is None})


def _can_take_turns(settings: TrainSettings) -> bool:
    """Return whether ranks and engines that share GPUs take turns by default. Others stay side by side, as before."""
    trainer, run = settings.trainer, settings.run
    one_machine = trainer.actor_num_nodes == 1 and not run.ray_address
    by_files = trainer.update_weight_transport != "collective"
    in_order = not settings.rollout.max_staleness and not run.tinker
    return settings.engine.colocate and _has_both(settings) and one_machine and by_files and in_order


def _has_both(settings: TrainSettings) -> bool:
    """Return whether the run generates and trains."""
    return not (settings.debug.debug_rollout_only or settings.debug.debug_train_only)


DRIVEN_STEPS, DRIVEN_WAIT_S = 1_000_000, 1e9
"""Defaults of a run that a client drives: it ends when it is stopped, however long the client waits."""


def _driven(settings: TrainSettings, set_by_flag: Collection[tuple[str, str]]) -> tuple[TrainSettings, list[str]]:
    """Return the settings of a run that a client drives: it draws, grades and evaluates nothing by itself."""
    if settings.run.tinker is None:
        return settings, []
    settings, unused = _without_generation(settings)
    rollout = settings.rollout
    if rollout.num_rollout is None:
        rollout = replace(rollout, num_rollout=DRIVEN_STEPS, num_epoch=None)
    if ("rollout", "rollout_deadline") not in set_by_flag:
        rollout = replace(rollout, rollout_deadline=DRIVEN_WAIT_S)
    notes = [f"{', '.join(unused)}: no effect; a client drives this run (tinker)."] if unused else []
    return replace(settings, rollout=rollout), notes


_DRAWN = ("dynamic_sampling_filter_path", "custom_generate_function_path", "partial_rollout")


def _supervised(settings: TrainSettings, set_by_flag: Collection[tuple[str, str]]) -> tuple[TrainSettings, list[str]]:
    """Return the settings of supervised training, with a sentence for each change: a row is a sample."""
    notes, rollout = list[str](), settings.rollout
    if ("rollout", "n_samples_per_prompt") not in set_by_flag and rollout.n_samples_per_prompt != 1:
        rollout = replace(rollout, n_samples_per_prompt=1)
        notes.append("n_samples_per_prompt is 1: each row of prompt_data is a sample.")
    defaults = {name: getattr(RolloutSettings(), name) for name in _DRAWN}
    idle = [name for name in _DRAWN if getattr(rollout, name) != defaults[name]]
    idle += ["rm_type"] if settings.reward.rm_type else []
    idle += ["custom_rm_path"] if settings.reward.custom_rm_path else []
    if idle:
        notes.append(f"{', '.join(idle)}: no effect; nothing is generated or graded (supervised).")
    debug, algorithm = replace(settings.debug, debug_train_only=True), settings.algorithm
    if algorithm.loss_type == "sft_loss":  # does not use advantages
        algorithm = replace(algorithm, compute_advantages_and_returns=False)
    return replace(settings, algorithm=algorithm, debug=debug, rollout=replace(rollout, **defaults)), notes


def _teacher_type(settings: TrainSettings) -> TeacherType:
    return "megatron" if settings.trainer.opd_teacher_load else "sglang"


def _teacher_notes(algorithm: AlgorithmSettings, rollout: RolloutSettings) -> Iterator[str]:
    if algorithm.use_opd and algorithm.opd_type == "sglang" and rollout.rollout_temperature != 1:
        yield (
            "opd_type sglang: the engine computes the teacher's log-probs at temperature 1, the student's are at "
            f"rollout_temperature {rollout.rollout_temperature}."
        )


GPU_HANG_S = 180.0
"""A micro batch takes seconds on a GPU, or a minute if kernels are compiled first."""
GPU_SAVE_INTERVAL, GPU_KEPT = 20, 2
"""Steps between checkpoints, and checkpoints that are kept; each has 18 bytes per parameter."""
GPU_RETRAINED = 8
"""Steps. Training again gives different bits on a GPU, so it only recovers the optimizer's moments."""
GPU_CHUNK = 1024
"""Rows of logits at a time: 32k rows of 152k logits take tens of gigabytes."""


def on_device(settings: TrainSettings, device: Device) -> TrainSettings:
    """Return the settings with the device's defaults for unset settings. auto: no GPU was found. Idempotent."""
    engine, trainer, on_gpu = settings.engine, settings.trainer, device == "cuda"
    engine = replace(engine, device=device)
    if on_gpu and engine.offload_train is engine.offload_rollout is None and _can_take_turns(settings):
        engine = _with_turns(engine)
    rollout_gpus = trainer.world_size if on_gpu and engine.colocate else None
    by_device: dict[str, Any] = {
        "bf16": on_gpu,
        "hang_seconds": GPU_HANG_S if on_gpu else None,
        "log_probs_chunk_size": GPU_CHUNK if on_gpu else -1,
        "max_retrained_steps": GPU_RETRAINED if on_gpu else -1,
        "optimizer_digest": "checkpoint" if on_gpu else "every",  # copies 12 bytes per parameter to the host
    }
    missing = {name: value for name, value in by_device.items() if getattr(trainer, name) is None}
    trainer = replace(trainer, **missing)
    if on_gpu and trainer.save_interval is None and not settings.debug.debug_rollout_only:
        trainer = _saved_by_default(trainer, settings.rollout)
    engine = replace(engine, rollout_num_gpus=engine.rollout_num_gpus or rollout_gpus)
    in_flight = min(engine.replicas * engine.sglang_server_concurrency, settings.rollout.most_open_samples)
    return replace(settings, engine=engine.with_chunks_for(in_flight), trainer=trainer)


def _saved_by_default(trainer: TrainerSettings, rollout: RolloutSettings) -> TrainerSettings:
    last = trainer.save_last or rollout.num_rollout
    kept = trainer.keep_checkpoints or GPU_KEPT
    return replace(trainer, save_interval=GPU_SAVE_INTERVAL, save_last=last, keep_checkpoints=kept)


def _wider_bound(settings: TrainSettings, rollout: RolloutSettings) -> str | None:
    """Return a note if samples may be further behind than --max-staleness: how far, and why."""
    if settings.debug.debug_rollout_only or rollout.rollout_batch_size < 1:
        return None
    draw, interval = rollout.over_sampling_batch_size, settings.trainer.update_weights_interval
    draw = None if rollout.rollout_function_path else draw  # keeps no surplus
    bound = staleness_bound(
        max_staleness=rollout.max_staleness, publish_every=interval, draw=draw, groups=rollout.rollout_batch_size
    )
    if bound <= rollout.max_staleness:
        return None
    causes = [f"draws of {draw} groups, whose surplus is kept for later steps,"] if draw and draw > 1 else []
    causes += [f"weights that are published only every {interval} steps"] if interval > 1 else []
    return f"samples may be up to {bound} versions behind, not only max_staleness {rollout.max_staleness}: " + (
        f"{' and '.join(causes)} add {bound - rollout.max_staleness}."
    )


def _batches(trainer: TrainerSettings, rollout: RolloutSettings) -> TrainerSettings:
    """Derive the missing one of global_batch_size and num_steps_per_rollout; a rollout step has the samples of both.

    If neither is set, a rollout step is a single optimizer step.
    """
    samples = rollout.rollout_batch_size * rollout.n_samples_per_prompt
    size, steps = trainer.global_batch_size, trainer.num_steps_per_rollout
    if rollout.rollout_function_path and size is None:  # the function sets the number of samples
        return replace(trainer, num_steps_per_rollout=steps or 1)
    if size is None and steps is None:
        return replace(trainer, global_batch_size=samples, num_steps_per_rollout=1)
    if size is None and steps and samples % steps == 0:
        return replace(trainer, global_batch_size=samples // steps)
    if steps is None and size and samples % size == 0:
        return replace(trainer, num_steps_per_rollout=samples // size)
    return trainer


def _schedule(trainer: TrainerSettings, rollout: RolloutSettings) -> TrainerSettings:
    """Derive the length of a schedule: the whole run, if its length is known at the start."""
    steps = trainer.num_steps_per_rollout
    decays = trainer.lr_decay_style != "constant" or trainer.lr_warmup_fraction is not None
    decays = decays or trainer.megatron.get("weight_decay_incr_style", "constant") != "constant"
    if not decays or trainer.lr_decay_iters is not None or rollout.num_rollout is None or steps is None:
        return trainer
    return replace(trainer, lr_decay_iters=rollout.num_rollout * steps)


def _saves(
    trainer: TrainerSettings, rollout: RolloutSettings, set_by_flag: Collection[tuple[str, str]]
) -> TrainerSettings:
    """Save a checkpoint after the last step, if checkpoints are saved at all."""
    if not trainer.save_interval or ("trainer", "save_last") in set_by_flag:
        return trainer
    return replace(trainer, save_last=rollout.num_rollout)


def _evaluation(evaluation: EvalSettings, settings: TrainSettings) -> EvalSettings:
    """Fill unset settings of evaluation from those of rollouts and training data."""
    rollout, data = settings.rollout, settings.data
    fallback = {
        "eval_temperature": rollout.rollout_temperature,
        "eval_top_p": rollout.rollout_top_p,
        "eval_top_k": rollout.rollout_top_k,
        "eval_max_response_len": rollout.rollout_max_response_len,
        "eval_input_key": data.input_key,
        "eval_label_key": data.label_key,
        "eval_tool_key": data.tool_key,
        "eval_on": "version",
    }
    if (context := evaluation.eval_max_context_len) is not None:
        fallback["eval_max_prompt_len"] = context - 1
    if evaluation.eval_interval is not None:
        fallback["eval_function_path"] = rollout.rollout_function_path
    missing = {name: value for name, value in fallback.items() if getattr(evaluation, name) is None}
    return replace(evaluation, **missing)
