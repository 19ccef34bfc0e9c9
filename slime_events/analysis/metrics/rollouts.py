"""Metrics of samples, of a batch or of an evaluation, under slime's names without their first part."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from schemas.batches import BatchSealed
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.analysis.metrics.sample import SampleFigures
from slime_events.core.config.settings import TrainSettings
from slime_events.model.advantages import has_critic, has_kl_penalty, sample_advantages

Values = dict[str, float]
QUARTERS = 4


def statistics_of(prefix: str, values: Sequence[float]) -> Values:
    """Return slime's four statistics of at least one value."""
    figures = {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "max": max(values),
        "min": min(values),
    }
    return {f"{prefix}/{name}": float(value) for name, value in figures.items()}


def prefixed(prefix: str, values: Mapping[str, float]) -> Values:
    """Return the values with `prefix` before their names."""
    return {prefix + name: value for name, value in values.items()}


def sample_metrics(samples: Sequence[SampleFigures], rewards: Sequence[float], settings: TrainSettings) -> Values:
    """Return the metrics of a batch's or an evaluation's samples, at least one. rewards: as graded, same order."""
    count = len(samples)
    values = statistics_of("response_len", [sample.trained for sample in samples])
    values["truncated_ratio"] = sum(sample.is_truncated for sample in samples) / count
    values["repetition_frac"] = sum(sample.repeats for sample in samples) / count
    if not has_critic(settings.algorithm):  # with a critic a prompt may have a single sample
        groups = _by_group([sample.group for sample in samples], rewards)
        equal = Counter(round(group[0], 1) for group in groups if len(set(group)) == 1)
        values |= {f"zero_std/count_{reward}": float(groups) for reward, groups in equal.items()}
    if (key := settings.metrics.log_reward_category) is not None:
        kinds = Counter(str((sample.detail or {}).get(key)) for sample in samples)
        values |= {f"error_cat/{kind}": number / count for kind, number in kinds.items()}
    return values


def batch_metrics(batch: BatchSealed, samples: Sequence[SampleFigures], settings: TrainSettings) -> Values:
    """Return rollout/ of a sealed batch. samples: in the order of the batch, or none if another run has them.

    If a user's log function replaces slime's, only the metrics of slime's trainer are returned.
    """
    raw: Sequence[float] = batch.raw_rewards
    values = {"rewards": statistics.fmean(batch.rewards), "raw_reward": statistics.fmean(raw)}
    if not samples:
        return values
    raw_rewards = [r if s.raw_reward is None else s.raw_reward for s, r in zip(samples, raw, strict=True)]
    values["raw_reward"] = statistics.fmean(raw_rewards)
    values["response_lengths"] = statistics.fmean(sample.length for sample in samples)
    values["total_lengths"] = statistics.fmean(sample.total for sample in samples)
    values["truncated"] = sum(sample.is_truncated for sample in samples) / len(samples)
    if log_probs := [sample.log_prob for sample in samples if sample.log_prob is not None]:
        values["rollout_log_probs"] = statistics.fmean(log_probs)
    if oldest := [batch.step - sample.oldest for sample in samples if sample.oldest is not None]:
        values |= statistics_of("staleness", oldest)
    made_elsewhere = settings.algorithm.advantages_by or has_critic(settings.algorithm)
    if not made_elsewhere and not has_kl_penalty(settings.algorithm):
        masks = [sample.mask for sample in samples]
        values["advantages"] = float(sample_advantages(batch.rewards, masks, settings.algorithm).mean.mean())
    if settings.metrics.log_correct_samples:
        values |= _correct(samples, raw_rewards, settings.rollout.rollout_max_response_len)
    return values if batch.log_function else values | sample_metrics(samples, raw, settings)


def pass_rates(groups: Iterable[str], rewards: Sequence[float]) -> Values:
    """Return pass@k for k = 1, 2, 4, ...; a reward of 1 is a correct answer. groups: the group of each sample."""
    by_group = _by_group(groups, rewards)
    return pass_rate([reward for group in by_group for reward in group], [len(group) for group in by_group])


def multi_turn_metrics(samples: Sequence[SampleFigures], longest: int) -> Values:
    """Return multi_turn/ of a batch. longest: --rollout-max-response-len [tokens]."""
    values: Values = {}
    figures: dict[str, list[float]] = {
        "raw_response_length/response_length": [sample.length for sample in samples],
        "wo_obs_response_length/response_length": [sample.trained for sample in samples],
        "multi_turn_metric/round_number": [sample.rounds for sample in samples],
    }
    for name, numbers in figures.items():
        values |= {f"{name}_mean": statistics.fmean(numbers), f"{name}_max": max(numbers), f"{name}_min": min(numbers)}
    clipped = sum(sample.length >= longest for sample in samples) / len(samples)
    return values | {"raw_response_length/response_length_clip_ratio": clipped}


def generation_metrics(samples: Sequence[SampleFigures], seconds: float, gpus: int) -> Values:
    """Return perf/ of a batch's generation. seconds: of the whole generation. gpus: of all engines; on CPUs, the number
    of engines.
    """
    values, tools = {"rollout_time": seconds}, [sample.tool_seconds for sample in samples]
    if not samples or seconds <= 0:
        return values
    if max(tools) > 0:
        values |= statistics_of("non_generation_time", tools)
    lengths = {"": [s.length for s in samples], "effective_": [s.trained for s in samples]}
    for name, tokens in lengths.items():
        longest = max(tokens)
        values[f"longest_{name}sample_tokens_per_sec"] = longest / seconds
        values[f"{name}tokens_per_gpu_per_sec"] = sum(tokens) / seconds / gpus
        if max(tools) > 0:
            waited = statistics.fmean(s for s, n in zip(tools, tokens, strict=True) if n == longest)
            values[f"longest_{name}sample_non_generation_time"] = waited
            if waited < seconds:
                values[f"longest_{name}sample_tokens_per_sec_without_non_generation"] = longest / (seconds - waited)
    return values


def _correct(samples: Sequence[SampleFigures], rewards: Sequence[float], longest: int) -> Values:
    """Return, for samples with a reward of 1: lengths, the share in each quarter of the longest, and minus the
    log-prob.
    """
    correct = [sample for sample, reward in zip(samples, rewards, strict=True) if reward == 1]
    if not correct:
        return {}
    lengths = [sample.length for sample in correct]
    values = {"correct_response_lengths": statistics.fmean(lengths)}
    bounds = [-1.0, *accumulate([longest / QUARTERS] * QUARTERS)]
    for number, (low, high) in enumerate(pairwise(bounds), 1):
        within = sum(low < length <= high for length in lengths) / len(correct)
        values[f"correct_length/p{100 * number // QUARTERS}"] = within
    if log_probs := [sample.log_prob for sample in correct if sample.log_prob is not None]:
        values["correct_entropy"] = -statistics.fmean(log_probs)
    return values


def _by_group(groups: Iterable[str], rewards: Sequence[float]) -> list[list[float]]:
    by_group = defaultdict[str, list[float]](list)
    for group, reward in zip(groups, rewards, strict=True):
        by_group[group].append(reward)
    return list(by_group.values())
