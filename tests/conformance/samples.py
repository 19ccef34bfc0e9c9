"""Families of samples: reward normalisation, conversion for the trainer, appending, figures."""

from __future__ import annotations

from typing import Any

from slime_events.algorithms.columns import convert_samples
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.algorithms.repetition import has_repetition
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.plugins.sample import Sample, Status

Input = dict[str, Any]

TEXTS = {"'ab'*4999 (9998 chars)": "ab" * 4999}
"""Texts that the cases describe in words."""


def reward_norm(case: Input) -> Any:
    """A batch that is not n x groups ends with a smaller group, as fan-out and failed siblings make it."""
    rewards, n = case["rewards"], case["n_samples_per_prompt"]
    sizes = [min(n, len(rewards) - start) for start in range(0, len(rewards), n)]
    settings = AlgorithmSettings(**case["overrides"])
    return {"raw": rewards, "rewards": normalize_rewards(rewards, sizes, settings)}


def convert_train_data(case: Input) -> Any:
    """The four samples that the case describes in words."""
    assert case["samples"].startswith("4 samples: idx0 tokens[1,2,3] rl2 r1; idx1 tokens[1,2,3,4] rl3 mask[1,0,1] r0")
    done = Status.COMPLETED
    return convert_samples(
        [
            Sample(index=0, group_index=0, tokens=[1, 2, 3], response_length=2, reward=1.0, status=done),
            Sample(
                index=1,
                group_index=0,
                tokens=[1, 2, 3, 4],
                response_length=3,
                loss_mask=[1, 0, 1],
                reward=0.0,
                status=Status.TRUNCATED,
            ),
            Sample(
                index=2, group_index=1, tokens=[5, 6], response_length=1, reward=1.0, remove_sample=True, status=done
            ),
            Sample(index=3, group_index=1, tokens=[5, 6, 7], response_length=2, reward=1.0, rollout_id=1, status=done),
        ],
        AlgorithmSettings(),
    )


def sample_append(case: Input) -> Any:
    if "steps" not in case:
        sample = Sample(tokens=[1, 2])
        sample.append_response_tokens(**case)
        return sample
    assert case["steps"][1:] == [
        "+[5,6] trainable lp[-.1,-.2] abort wv=3",
        "+[9] non-trainable",
        "+[7] trainable lp[-.3] stop wv=4",
    ]
    sample = Sample(tokens=[1, 2])
    first = {"finish_reason": {"type": "abort"}, "weight_version": 3, "cached_tokens": 0, "prompt_tokens": 2}
    sample.append_response_tokens(tokens=[5, 6], log_probs=[-0.1, -0.2], text="ab", meta_info=first)
    sample.append_response_tokens(tokens=[9], trainable=False, text="T")
    last = {"finish_reason": {"type": "stop"}, "weight_version": 4, "cached_tokens": 4, "prompt_tokens": 5}
    sample.append_response_tokens(tokens=[7], log_probs=[-0.3], text="c", meta_info=last)
    names = ["tokens", "response", "response_length", "loss_mask", "rollout_log_probs", "weight_versions", "status"]
    return {**{name: getattr(sample, name) for name in names}, "prefix_cache": sample.prefix_cache_info}


def passrate(case: Input) -> Any:
    size = case["group_size"]
    return pass_rate(case["flat_rewards"], [size] * (len(case["flat_rewards"]) // size))


def repetition(case: Input) -> Any:
    return has_repetition(TEXTS[case["text"]])
