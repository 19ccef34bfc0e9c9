"""Families of samples: reward normalisation, conversion for the trainer, appending, figures."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from actors.step.data_split import rollout_denominators
from schemas.arrays import unpack
from schemas.ids import group_of, sample_id, sibling_id
from schemas.rewards import RewardAssigned
from slime_events.algorithms.pass_rate import has_repetition, pass_rate
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.tokens.trajectory import Trajectories
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.conductor.seal import batch_digest
from slime_events.loop.training.pending_batches import build_batch
from slime_events.plugins.sample import Sample
from tests import made
from tests.harness.conformance import described
from tests.harness.conformance.case import Case, UnknownShape
from tests.harness.conformance.losses import algorithm


def group_sizes(count: int, size: int) -> list[int]:
    """Groups of `size`; what is over is a smaller one, as fan-out and failed siblings make it."""
    return [min(size, count - start) for start in range(0, count, size)]


def reward_norm(case: Case) -> Any:
    params = case.input
    rewards, overrides = params["rewards"], params.get("overrides", {})
    settings = algorithm(**{k: v for k, v in overrides.items() if k in AlgorithmSettings.__struct_fields__})
    size = overrides.get("n_samples_per_prompt", params["n_samples_per_prompt"])
    return {"raw": rewards, "rewards": normalize_rewards(rewards, group_sizes(len(rewards), size), settings)}


def convert_train_data(case: Case) -> Any:
    """Convert samples in words, or with slime's fields, in groups of two unless the case says otherwise."""
    params = case.input
    samples = described.samples(params["samples"])
    batch = _as_trained(samples, params.get("n_samples_per_prompt", 2), params.get("overrides", {}))
    trained = [int(sample.loss_mask.sum()) for sample in batch.samples]
    return {
        "tokens": [sample.tokens.tolist() for sample in batch.samples],
        "total_lengths": [sample.total_length for sample in batch.samples],
        "response_lengths": [sample.response_length for sample in batch.samples],
        "rewards": [sample.reward for sample in batch.samples],
        "raw_reward": [sample.raw_reward for sample in batch.samples],
        "truncated": [int(sample.truncated) for sample in batch.samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": _numbers([sample.rollout for sample in batch.samples], [s.rollout_id for s in samples]),
        "loss_masks": [sample.loss_mask.tolist() for sample in batch.samples],
        "rollout_log_probs": [sample.rollout_log_probs.tolist() for sample in batch.samples],
        "rollout_mask_sums": rollout_denominators(batch.samples) or trained,
    }


def _as_trained(samples: list[Sample], size: int, overrides: dict[str, Any]) -> TrainBatch:
    """Return the trainer's batch for groups of `size` rollouts, played from a dump and sealed.

    Samples with one rollout_id are of one rollout.
    """
    rollouts: dict[Any, list[Sample]] = {}
    for place, sample in enumerate(samples):
        rollouts.setdefault(("alone", place) if sample.rollout_id is None else sample.rollout_id, []).append(sample)
    members = list(rollouts.values())
    groups = [members[start : start + size] for start in range(0, len(members), size)]
    dump = LoadedStep(0, "dump", "dump", groups)
    trajectories, raw = Trajectories(unpack), {}
    for place, (prompt, group) in enumerate(zip(dump.prompts(), groups, strict=True)):
        for index in range(len(group)):
            request = made.requested(
                sample_id(prompt.group, index), group=prompt.group, index=index, prompt=prompt.tokens, seed=0
            )
            for event in (request, *dump.answers(request, place, "test")):
                trajectories.apply(event, 1)
                if isinstance(event, RewardAssigned):
                    raw[event.sample] = event.value
    names = [
        sibling_id(sample_id(prompt.group, index), number)
        for prompt, group in zip(dump.prompts(), groups, strict=True)
        for index, rollout in enumerate(group)
        for number in range(len(rollout))
    ]
    raw = {name: raw[name] for name in names}  # an engine says siblings before the sample that was asked for
    sizes = [sum(map(len, group)) for group in groups]
    rewards = normalize_rewards(list(raw.values()), sizes, algorithm(**overrides))
    lines = [(name, trajectories.by_sample[name].digest, reward) for name, reward in zip(raw, rewards, strict=True)]
    sealed = made.sealed(
        groups=tuple(dict.fromkeys(map(group_of, raw))),
        samples=tuple(raw),
        rewards=tuple(rewards),
        raw_rewards=tuple(raw.values()),
        digest=batch_digest(0, lines),
    )
    return build_batch(sealed, trajectories.by_sample, unpack, temperature=1.0)


def _numbers(rollouts: list[str], ids: list[int | None]) -> list[int]:
    """slime numbers rollouts where we name them: by `ids`, else by the smallest number that is not taken."""
    numbers = {rollout: number for rollout, number in zip(rollouts, ids, strict=True) if number is not None}
    for rollout in rollouts:
        taken = set(numbers.values())
        numbers.setdefault(rollout, next(n for n in range(len(rollouts) + 1) if n not in taken))
    return [numbers[rollout] for rollout in rollouts]


def sample_append(case: Case) -> Any:
    """One call with these arguments, or several in words."""
    params = case.input
    if "steps" not in params:
        start = params.get("sample", {"tokens": [1, 2]})
        sample = Sample(**start)
        sample.append_response_tokens(**{name: value for name, value in params.items() if name != "sample"})
        return fields_of(sample)
    sample, cached = Sample(), 0
    letters = iter("abcdefghijklmnopqrsuvwxyz")  # the texts, which the words leave out: T is a tool's token
    for step in params["steps"]:
        if step.startswith("tokens="):
            sample.tokens = [int(number) for number in described.numbers(step)]
            continue
        call = described.appended(step)
        text = "".join(next(letters) if call.trainable else "T" for _ in call.tokens)
        meta: dict[str, Any] | None = None
        if call.finish is not None:
            # An engine finds in its cache what it has seen of this sample: prompt and response of the call before.
            meta = {
                "finish_reason": {"type": call.finish},
                "cached_tokens": cached,
                "prompt_tokens": len(sample.tokens),
            }
            cached = len(sample.tokens) + len(call.tokens)
            if call.version is not None:
                meta["weight_version"] = call.version
        sample.append_response_tokens(
            tokens=call.tokens, log_probs=call.log_probs, trainable=call.trainable, text=text, meta_info=meta
        )
    return fields_of(sample)


def fields_of(sample: Sample) -> dict[str, Any]:
    """A sample's fields, by slime's names; `prefix_cache` as slime's `to_dict` gives it."""
    values = {field.name: getattr(sample, field.name) for field in fields(sample)}
    return values | {"status": str(sample.status), "prefix_cache": sample.prefix_cache_info.to_dict()}


def passrate(case: Case) -> Any:
    params = case.input
    size, rewards = params["group_size"], params["flat_rewards"]
    if (ids := params.get("group_ids")) is not None:
        groups: dict[Any, list[float]] = {}
        for number, reward in zip(ids, rewards, strict=True):
            groups.setdefault(number, []).append(reward)
        return pass_rate([reward for group in groups.values() for reward in group], [*map(len, groups.values())])
    return pass_rate(rewards, [size] * params.get("num_groups", len(rewards) // size))


def repetition(case: Case) -> Any:
    """A text, in Python's words or as it is, or a unit and how often it comes."""
    params = case.input
    if "text" in params:
        return has_repetition(described.text(params["text"]))
    unit = next((value for value in params.values() if isinstance(value, str)), None)
    count = next((value for value in params.values() if isinstance(value, int)), None)
    if unit is None or count is None:
        raise UnknownShape(f"no text in {sorted(params)}")
    return has_repetition(unit * count)
