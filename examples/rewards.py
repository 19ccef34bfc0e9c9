"""A reward: 1 for the right number at the end, a little for having tried. `--custom-rm-path examples/rewards.py`."""

from slime_events import ArgsView, Sample


def reward_func(args: ArgsView, sample: Sample) -> float:
    """`sample.answer` is what follows the last `</think>`, without the end token."""
    if sample.answer == str(sample.label):
        return 1.0
    return 0.1 if sample.answer else 0.0
