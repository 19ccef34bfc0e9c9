"""Rules for settings that are invalid or exclude each other; each violation gives a sentence."""

import re
from collections.abc import Iterator

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.core.config.engine_addresses import engine_url
from slime_events.core.config.engine_groups import problems_of
from slime_events.core.config.evaluation import EvalSet, name_problem, sampling_problems
from slime_events.core.config.fields import NOTHING_REGISTERED, Registered
from slime_events.core.config.per_source import quotas, shares
from slime_events.core.config.rule_checks import problems
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings

NOT_DETERMINISTIC = ("cross_entropy_loss_fusion", "tp_comm_overlap")
"""Settings that Megatron's deterministic mode refuses."""

BALANCE_LOSSES = ("moe_aux_loss_coeff", "moe_z_loss_coeff")
"""Coefficients of Megatron's auxiliary losses of routers."""


def impossible(settings: TrainSettings, registered: Registered = NOTHING_REGISTERED) -> list[str]:
    """Return a sentence for each problem of derived settings (`derive`); empty if the run can start.

    Most rules are at the fields of the settings (`rules`); the rules here need more than a condition. All read only the
    settings, not the machine: see `missing_paths` for that.
    """
    rules = (_run, _rollout, _data, _rewarded_outside, _trainer, _balance, _layout, _evaluation, _grading, _engines)
    return [*problems(settings, registered), *(problem for rule in rules for problem in rule(settings))]


def check_device(trainer: TrainerSettings, *, cpu: bool) -> None:
    """Raise ImpossibleCombination if ranks on that device do not support a setting."""
    if trainer.tree_packing and not cpu:
        raise ImpossibleCombination(
            "tree_packing is for trainer ranks on the CPU: Transformer Engine's attention over packed sequences takes "
            "lengths and no mask, so a sample on a GPU could not attend to a shared prefix. Leave it out"
        )


def _run(settings: TrainSettings) -> Iterator[str]:
    run = settings.run
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run.run):
        yield (
            f"run is {run.run!r}: the name is part of NATS subjects, so it has 1 to 64 letters, digits, - and _ only."
        )
    if run.nats_replicas not in (1, 3, 5):
        yield f"nats_replicas is {run.nats_replicas}: it must be 1, 3 or 5, so that a majority of the copies exists."


def _rollout(settings: TrainSettings) -> Iterator[str]:
    rollout = settings.rollout
    if rollout.rollout_top_k != -1 and rollout.rollout_top_k < 1:
        yield f"rollout_top_k is {rollout.rollout_top_k}: it must be a number of tokens, or -1 for all."
    steps, epochs = rollout.num_rollout, rollout.num_epoch
    if steps is None and epochs is None:
        yield "Neither num_rollout nor num_epoch is set: set one, or the run has no end."
    if steps is not None and epochs is not None:
        yield f"num_rollout {steps} and num_epoch {epochs} both set the end of the run: give one."


def _data(settings: TrainSettings) -> Iterator[str]:
    data = settings.data
    for read, text in ((shares, data.source_share), (quotas, data.source_quota)):
        try:
            read(text)
        except InvalidValue as error:
            yield f"{error}."


def _rewarded_outside(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each evaluation set whose rewards would be sent: rewards are sent for training only."""
    evaluation, reward = settings.evaluation, settings.reward
    if reward.rm_type != "outside" or reward.custom_rm_path or evaluation.eval_interval is None:
        return
    for name, dataset in evaluation.sets().items():
        if not (dataset.custom_rm_path or dataset.metadata({}).get("rm_type")):
            yield (
                f"{evaluation.where(name)}: with rm_type outside, no rewards are sent for its answers: "
                "give the set an rm_type in eval_config."
            )


def _trainer(settings: TrainSettings) -> Iterator[str]:
    trainer = settings.trainer
    for name in ("only_train_params_name_list", "freeze_params_name_list"):
        yield from (f"{name}: {problem}." for problem in map(_no_expression, getattr(trainer, name)) if problem)
    if trainer.save_hf and (problem := _no_template(trainer.save_hf)):
        yield f"save_hf {problem}."
    groups, each = settings.rollout.rollout_batch_size, settings.rollout.n_samples_per_prompt
    size, steps = trainer.global_batch_size, trainer.num_steps_per_rollout
    # A rollout function defines the samples of a step.
    counted = size is None and settings.rollout.rollout_function_path is not None
    if steps is None or (not counted and (size is None or size * steps != groups * each)):
        yield (
            "rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout does not hold: "
            f"{groups} x {each} = {groups * each}, and {size or '?'} x {steps or '?'} do not multiply to that."
        )
    for name in (name for name in NOT_DETERMINISTIC if trainer.deterministic and trainer.megatron.get(name)):
        yield f"deterministic_mode excludes {name}, which has no deterministic kernels: leave one of them out."


def _balance(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each reason why auxiliary losses of routers cannot be added."""
    trainer = settings.trainer
    losses = [name for name in BALANCE_LOSSES if is_on(trainer.megatron.get(name))]
    reasons = {
        "tree_packing": (trainer.tree_packing, "a prefix that several samples share would count once"),
        "tinker": (settings.run.tinker, "a client's passes have the client's loss alone"),
    }
    for name, (excluded, reason) in reasons.items():
        if losses and excluded:
            yield f"{losses[0]} does not go with {name}: {reason}. Leave one of them out."


def _layout(settings: TrainSettings) -> Iterator[str]:
    trainer, size = settings.trainer, settings.trainer.global_batch_size
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


def is_on(value: object) -> bool:
    """Return whether a coefficient, or any of a list, is not 0."""
    return any(value) if isinstance(value, list) else bool(value)


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
    for name, dataset in evaluation.sets().items() if settings.rollout.agents else ():
        if dataset.custom_generate_function_path:
            yield f"agents excludes eval_config {name}.custom_generate_function_path: both make the rollouts."
    flags, rollout = evaluation.over(EvalSet(path="")), settings.rollout
    training = EvalSet(path="", top_p=rollout.rollout_top_p, top_k=rollout.rollout_top_k)
    shown = list(sampling_problems(training, "eval_"))
    yield from (problem for problem in sampling_problems(flags, "eval_") if problem not in shown)
    shown = list(sampling_problems(flags))
    for name, dataset in evaluation.sets().items():
        own = (problem for problem in sampling_problems(dataset) if problem not in shown)
        yield from (f"{evaluation.where(name)}: {problem}" for problem in own)


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
    if "remote_rm" in (reward.rm_type or "") and not reward.custom_rm_path and not reward.rm_url:
        yield "rm_type remote_rm needs rm_url: the address of the reward model."
    if reward.rm_url and not reward.rm_url.startswith(("http://", "https://")):
        yield f"rm_url {reward.rm_url} is not an http:// or https:// address."


def _engines(settings: TrainSettings) -> Iterator[str]:
    engine, interval = settings.engine, settings.trainer.update_weights_interval
    if not engine.hf_checkpoint:
        yield "hf_checkpoint is not set: set it to the Hugging Face folder of the model to train."
    yield from _addresses(engine.rollout_external_engine_addrs)
    if engine.colocate and bool(engine.offload_train) is not bool(engine.offload_rollout):
        yield (
            f"offload_train is {bool(engine.offload_train)} and offload_rollout {bool(engine.offload_rollout)}: ranks "
            "and engines take turns only if both release their devices. Give both, or neither."
        )
    if engine.rollout_external_engine_addrs and engine.sglang and not settings.trainer.use_rollout_routing_replay:
        names = ", ".join(f"sglang_{name}" for name in sorted(engine.sglang))
        yield f"rollout_external_engine_addrs excludes {names}: the servers run already, so give it where they start."
    each = engine.rollout_num_gpus_per_engine
    wrong = list(problems_of(engine.sglang_models, engine.hf_checkpoint, each))
    yield from wrong
    gpus = None if engine.rollout_external_engine_addrs else engine.rollout_num_gpus
    total = sum(group.gpus for group in engine.groups)
    if engine.sglang_models and not wrong and gpus not in (None, total):
        yield f"rollout_num_gpus {gpus} is not the {total} GPUs of sglang_config's groups: leave it out."
    if gpus is not None and each > 0 and gpus % each and not engine.sglang_models:
        yield f"rollout_num_gpus {gpus} does not divide into engines of rollout_num_gpus_per_engine {each}."
    lag = 0 if settings.debug.debug_rollout_only else interval - 1
    if lag > max(0, settings.rollout.max_staleness):
        yield (
            f"update_weights_interval {interval} makes rollouts up to {lag} versions old, but "
            f"max_staleness is {settings.rollout.max_staleness}: increase it."
        )


def _addresses(addresses: list[str]) -> Iterator[str]:
    urls = set[str]()
    for address in addresses:
        try:
            url = engine_url(address)
        except InvalidValue as error:
            yield f"rollout_external_engine_addrs: {error}."
            continue
        if url in urls:
            yield f"rollout_external_engine_addrs names {url} twice: a server is one engine."
        urls.add(url)
