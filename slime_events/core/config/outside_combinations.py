"""Settings that exclude agents, senders of rewards, or a client of Tinker's protocol."""

from collections.abc import Iterator

from slime_events.core.config.settings import TrainSettings


def made_by_agents(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each problem, for `impossible`."""
    rollout, debug = settings.rollout, settings.debug
    if settings.agents.agent_command and not (rollout.agents and settings.gateway.listens):
        yield "agent_command needs agents and gateway: its programs make rollouts through the run's gateway."
    if not rollout.agents:
        return
    makers = {
        "rollout_function_path": rollout.rollout_function_path,
        "custom_generate_function_path": rollout.custom_generate_function_path,
        "rollout_sample_hook_path": rollout.rollout_sample_hook_path,
        "supervised": settings.data.supervised,
        "load_debug_rollout_data": debug.load_debug_rollout_data,
        "archive_reuse rollouts": settings.data.archive_reuse == "rollouts",
    }
    makers |= {
        f"eval_config {name}.custom_generate_function_path": dataset.custom_generate_function_path
        for name, dataset in settings.evaluation.sets().items()
    }
    for name in [name for name, value in makers.items() if value]:
        yield f"agents excludes {name}: both make the rollouts."
    yield from _discounted(settings)
    if rollout.partial_rollout:
        yield "agents excludes partial_rollout: an external program cannot be suspended between two steps of the run."


def _discounted(settings: TrainSettings) -> Iterator[str]:
    agents, algorithm = settings.agents, settings.algorithm
    if agents.agent_turn_discount > 1:
        yield (
            f"agent_turn_discount is {agents.agent_turn_discount:g}: an earlier turn cannot weigh more than a "
            "later one."
        )
    if agents.agent_credit != "discounted":
        return
    if algorithm.advantage_estimator == "ppo":
        yield "agent_credit discounted excludes advantage_estimator ppo: its critic learns the value of each turn."
    if algorithm.advantages_by:
        yield f"agent_credit discounted excludes {algorithm.advantages_by}: it makes the advantages itself."


def rewarded_outside(settings: TrainSettings) -> Iterator[str]:
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


def driven_by_client(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each problem, for `impossible`."""
    if settings.run.tinker is None:
        return
    debug, agents = settings.debug, settings.agents
    excluded = {
        "debug_rollout_only": debug.debug_rollout_only, "debug_train_only": debug.debug_train_only,
        "log_keep_steps": settings.run.log_keep_steps, "gateway": settings.gateway.listens,
        "agent_command": agents.agent_command, "ppo": settings.algorithm.advantage_estimator == "ppo",
    }  # fmt: skip
    yield from (f"tinker excludes {name}: a client drives the run." for name, on in excluded.items() if on)
    if (optimizer := settings.trainer.optimizer) != "adam":
        yield f"tinker needs optimizer adam, not {optimizer}: a client's optim_step is a step of Adam."
