"""A reward: 1 for the right number, 0.1 for another answer. `--custom-rm-path examples/rewards.py`."""

from slime_events import ArgsView, Sample


def reward_func(args: ArgsView, sample: Sample) -> float:
    """Grade a sample. `sample.answer` is the text after the last `</think>`, without the end token."""
    if sample.answer == str(sample.label):
        return 1.0
    return 0.1 if sample.answer else 0.0
