"""A filter that drops groups that are too easy: `--dynamic-sampling-filter-path examples/filters.py:not_too_easy`."""

from slime_events import ArgsView, DynamicFilterOutput, Sample


def not_too_easy(args: ArgsView, samples: list[Sample]) -> DynamicFilterOutput:
    """Drop a group with more than four right answers in five. The log counts groups by reason."""
    rewards = [sample.get_reward_value(args) for sample in samples]
    solved = sum(reward > 0.9 for reward in rewards) / len(rewards)
    if solved > 0.8:
        return DynamicFilterOutput(keep=False, reason=f"solved_{solved:.1f}")
    return DynamicFilterOutput(keep=True)
