"""`deepscaler`: the boxed answer after the thinking (DeepScaleR's rule-based reward, as in slime)."""

from __future__ import annotations

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.math import answers_equal
from slime_events.plugins.sample import Sample


def reward(response: str, sample: Sample) -> int:
    """Return 1 or 0."""
    return get_deepscaler_rule_based_reward(response, sample.label)


def get_deepscaler_rule_based_reward(response: str, label: str | int | float | None) -> int:
    """Return 1 if the last box after the last `</think>` (or the first `###Response`) equals the label.

    Without either mark, a box or a label the reward is 0. Raises TypeError on a label that is neither text nor number.
    """
    if "</think>" in response:
        solution = response.split("</think>")[-1]
    elif "###Response" in response:
        solution = response.split("###Response")[1]
    else:
        return 0
    answer = last_boxed(solution)
    if answer is None or label == "":
        return 0
    if not isinstance(label, str | int | float):
        raise TypeError(
            f"deepscaler needs a text or number as label, not {type(label).__name__} (is --label-key right?)"
        )
    truth: str | None = str(label)
    if truth and (r"\boxed" in truth or r"\fbox" in truth):
        truth = last_boxed(truth)
    return int(truth is not None and answers_equal(answer, truth))
