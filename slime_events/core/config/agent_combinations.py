"""`made_by_agents`: settings that --agents excludes, a sentence for each."""

from collections.abc import Iterator

from slime_events.core.config.settings import TrainSettings


def made_by_agents(settings: TrainSettings) -> Iterator[str]:
    """See `impossible`."""
    rollout, debug = settings.rollout, settings.debug
    if settings.agents.agent_command and not (rollout.agents and settings.gateway.listens):
        yield "agent_command needs agents and gateway: its programs make rollouts through the run's own gateway."
    if not rollout.agents:
        return
    made = {
        "rollout_function_path": rollout.rollout_function_path,
        "custom_generate_function_path": rollout.custom_generate_function_path,
        "rollout_sample_hook_path": rollout.rollout_sample_hook_path,
        "supervised": settings.data.supervised,
        "load_debug_rollout_data": debug.load_debug_rollout_data,
        "archive_reuse rollouts": settings.data.archive_reuse == "rollouts",
    }
    made |= {
        f"eval_config {name}.custom_generate_function_path": one.custom_generate_function_path
        for name, one in settings.evaluation.sets().items()
    }
    for name in [name for name, given in made.items() if given]:
        yield f"agents excludes {name}: both make the rollouts."
    if rollout.partial_rollout:
        yield "agents excludes partial_rollout: a program outside cannot be suspended between two steps of the run."
