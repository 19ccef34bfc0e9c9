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
