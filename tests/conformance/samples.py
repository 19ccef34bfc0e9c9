"""Families of samples: reward normalisation, conversion for the trainer, appending, figures."""

from __future__ import annotations

from typing import Any

from actors.megatron.data_split import rollout_denominators
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.ids import group_of, sample_id
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutRequested, Sampling
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.rollout_figures import has_repetition
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.train_batch import TrainBatch
from slime_events.core.trajectory import Trajectories
from slime_events.loop.conductor.seal import batch_digest
from slime_events.loop.training.pending_batches import build_batch
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
    samples = [
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
        Sample(index=2, group_index=1, tokens=[5, 6], response_length=1, reward=1.0, remove_sample=True, status=done),
        Sample(index=3, group_index=1, tokens=[5, 6, 7], response_length=2, reward=1.0, rollout_id=1, status=done),
    ]
    batch = _as_trained(samples)
    trained = [int(sample.loss_mask.sum()) for sample in batch.samples]
    return {
        "response_lengths": [sample.response_length for sample in batch.samples],
        "rewards": [sample.reward for sample in batch.samples],
        "raw_reward": [sample.raw_reward for sample in batch.samples],
        "truncated": [int(sample.truncated) for sample in batch.samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": _numbers([sample.rollout for sample in batch.samples], [s.rollout_id for s in samples]),
        "loss_masks": [sample.loss_mask.tolist() for sample in batch.samples],
        "rollout_mask_sums": rollout_denominators(batch.samples) or trained,
    }


def _as_trained(samples: list[Sample]) -> TrainBatch:
    """What the trainer makes of two groups of two rollouts, played from a dump and sealed."""
    dump = LoadedStep(0, "dump", "dump", [[[one] for one in samples[:2]], [[one] for one in samples[2:]]])
    trajectories, raw = Trajectories(unpack), {}
    for place, prompt in enumerate(dump.prompts()):
        for index in range(2):
            request = RolloutRequested(
                sample=sample_id(prompt.group, index),
                group=prompt.group,
                index=index,
                attempt=0,
                prompt=prompt.tokens,
                sampling=Sampling(max_new_tokens=8),
                seed=0,
                min_version=0,
            )
            for event in (request, *dump.answers(request, place, "test")):
                trajectories.apply(event, 1)
                if isinstance(event, RewardAssigned):
                    raw[event.sample] = event.value
    rewards = normalize_rewards(list(raw.values()), [2, 2], AlgorithmSettings())
    lines = [(name, trajectories.by_sample[name].digest, reward) for name, reward in zip(raw, rewards, strict=True)]
    sealed = BatchSealed(
        step=0,
        groups=tuple(dict.fromkeys(map(group_of, raw))),
        samples=tuple(raw),
        rewards=tuple(rewards),
        raw_rewards=tuple(raw.values()),
        digest=batch_digest(0, lines),
    )
    return build_batch(sealed, trajectories.by_sample, unpack, temperature=1.0)


def _numbers(rollouts: list[str], given: list[int | None]) -> list[int]:
    """slime numbers rollouts where we name them: as given, else by the smallest number that is not taken."""
    numbers = {rollout: number for rollout, number in zip(rollouts, given, strict=True) if number is not None}
    for rollout in rollouts:
        numbers.setdefault(rollout, next(n for n in range(9) if n not in numbers.values()))
    return [numbers[rollout] for rollout in rollouts]


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
    return {**{name: getattr(sample, name) for name in names}, "prefix_cache": sample.prefix_cache_info.to_dict()}


def passrate(case: Input) -> Any:
    size = case["group_size"]
    return pass_rate(case["flat_rewards"], [size] * (len(case["flat_rewards"]) // size))


def repetition(case: Input) -> Any:
    return has_repetition(TEXTS[case["text"]])
