"""--rollout-sample-filter-path, --rollout-all-samples-process-path and the two log functions, as slime calls them."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample

SEEN: list = []


def drop_short(args, groups) -> None:
    """Does not train on the shortest answer of each group."""
    note("drop_short", groups=len(groups))
    for group in groups:
        shortest = min(group, key=lambda sample: (len(sample.tokens), sample.index))
        shortest.remove_sample = True


def look_at_all(args, all_groups, data_source) -> None:
    note("look_at_all", groups=len(all_groups))
    SEEN.append(("all", [[sample.get_reward_value(args) for sample in group] for group in all_groups]))


def log_step(rollout_id, args, samples: list[Sample], extra_metrics, rollout_time) -> bool:
    assert all(len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length for sample in samples)
    note("log_step", rollout_id=rollout_id, samples=len(samples))
    SEEN.append(("step", rollout_id, len(samples), extra_metrics, rollout_time >= 0))
    return rollout_id % 2 == 0


def log_eval(rollout_id, args, data, extra_metrics) -> bool:
    note("log_eval", rollout_id=rollout_id, sets=sorted(data))
    for name, of_set in data.items():
        SEEN.append(("eval", rollout_id, name, len(of_set["rewards"]), len(of_set["samples"]), of_set["truncated"]))
    return True


def adds_prompts(args, all_groups, data_source) -> None:
    data_source.add_samples(all_groups)


def changes_rewards(args, groups) -> None:
    groups[0][0].reward = 9.0


def drops_groups(args, groups) -> None:
    del groups[1:]


def raises(args, groups) -> None:
    raise KeyError("difficulty")


def convert(args, samples: list[Sample]) -> dict:
    """slime's own conversion, with rewards that are centred over the step, masked first tokens and a column more."""
    import torch

    rewards = [sample.get_reward_value(args) for sample in samples]
    mean = sum(rewards) / len(rewards)
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [reward - mean for reward in rewards],
        "raw_reward": rewards,
        "truncated": [1 if sample.status == Sample.Status.TRUNCATED else 0 for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[0] + [1] * (sample.response_length - 1) for sample in samples],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
        "metadata": None,
        "multimodal_train_inputs": [None for _ in samples],
        "round_number": [sample.metadata.get("round", 0) for sample in samples],
        "teacher_log_probs": [torch.full((sample.response_length,), -0.5) for sample in samples],
        "kinds": [{"turns": index} for index, _ in enumerate(samples)],
    }


def convert_made(args, samples, raw_rewards, rewards) -> dict:
    return {"rewards": [2 * reward for reward in rewards], "raw_reward": raw_rewards}


def convert_other_tokens(args, samples) -> dict:
    return convert(args, samples) | {"tokens": [[*sample.tokens, 0] for sample in samples]}


def convert_fewer(args, samples) -> dict:
    return {name: value[1:] for name, value in convert(args, samples).items() if value}


def convert_half_masks(args, samples) -> dict:
    return {"loss_masks": [[0.5] * sample.response_length for sample in samples]}


def convert_images(args, samples) -> dict:
    return {"multimodal_train_inputs": [{"pixels": 1} for _ in samples]}


def convert_to_nan(args, samples) -> dict:
    return {"rewards": [float("nan") for _ in samples]}


def convert_to_list(args, samples) -> list:
    return samples
