"""`--save-debug-train-data`: write the inputs of a step to a torch file in slime's format: plain values and tensors.

    {"format_version": 2, "rollout_id", "rank", "samples": [...], "dp_shards": [...], "raw_reward": [...]}

`samples` has an entry per sample in batch order, under slime's names of columns. `dp_shards` has the samples and micro
batches of each data parallel rank. Values that no pass computed are left out: log-probs of a sample that cannot move
the weights, or a reference without a KL.
"""

import io
from typing import Any

import torch
import torch.distributed as dist

from actors.step.rollout_step import RolloutStep
from slime_events.analysis.export.files import write_file
from slime_events.analysis.export.sample import OURS
from slime_events.core.training.train_batch import TrainBatch, TrainSample


def save_train_dump(step: RolloutStep, batch: TrainBatch, path: str) -> None:
    """Write the dump of a step that was run; collective, rank 0 writes. Raises StoreUnavailable, NoSpace."""
    place = step.context.policy.place
    if place.tensor.rank() != 0:
        return  # ranks of a tensor parallel group have the same columns
    shards = [_shard(step)]
    if place.data.size() > 1:
        shards *= place.data.size()
        dist.all_gather_object(shards, shards[0], group=place.data)
    if place.rank != 0:
        return
    shard_of = {index: shard for shard in shards for index in shard["partition"]}
    samples = [_sample(index, sample, shard_of.get(index)) for index, sample in enumerate(batch.samples)]
    pack = {
        "format_version": 2,
        "rollout_id": batch.step,
        "rank": place.rank,
        "samples": samples,
        "dp_shards": [{name: value for name, value in shard.items() if name != "tokens_of"} for shard in shards],
        "raw_reward": [sample.raw_reward for sample in batch.samples],
    }
    buffer = io.BytesIO()
    torch.save(pack, buffer)
    write_file(path, buffer.getvalue())


def _shard(step: RolloutStep) -> dict[str, Any]:
    """Return this rank's shard. `partition` indexes the batch, `micro_batch_indices` indexes `partition`."""
    place, plan, columns = step.context.policy.place, step.context.plan, step.context.columns
    data, passes = place.data, set(plan.passes)
    unmoved = set(plan.kept) - set(plan.passing(plan.kept))
    mine = sorted(passes | {index for index in unmoved if index % data.size() == data.rank()})
    where = {index: place for place, index in enumerate(mine)}
    by_name = {
        "log_probs": columns.old | columns.before,
        "ref_log_probs": columns.reference,
        "advantages": columns.advantages,
        "teacher_log_probs": columns.teacher,
    }
    if step.critic is not None:
        by_name |= {"values": columns.values, "returns": columns.returns}
    return {
        "rank": place.rank,
        "data_parallel_rank": data.rank(),
        "sample_indices": mine,
        "partition": mine,
        "num_microbatches": [len(batches) for batches in plan.micro_batches],
        "micro_batch_indices": [
            [where[index] for index in members] for batches in plan.micro_batches for members in batches
        ],
        "global_batch_sizes": [optimizer_step.rollouts for optimizer_step in plan.steps],
        # Copies, since a view would store the values of its whole micro batch.
        "tokens_of": {
            name: {index: values[index].detach().cpu().clone() for index in mine if index in values}
            for name, values in by_name.items()
        },
    }


def _sample(index: int, sample: TrainSample, shard: dict[str, Any] | None) -> dict[str, Any]:
    """Return a sample's entry. shard: None for a sample that belongs to no optimizer step."""
    tokens_of = shard["tokens_of"] if shard else {}
    return {
        "sample_index": index,
        "rollout_position": index,
        "data_parallel_rank": shard["data_parallel_rank"] if shard else None,
        "tokens": torch.from_numpy(sample.tokens.astype("int64")),
        "total_lengths": sample.total_length,
        "response_lengths": sample.response_length,
        "loss_masks": torch.from_numpy(sample.loss_mask.astype("int32")),
        "rewards": sample.reward,
        "truncated": int(sample.truncated),
        "rollout_log_probs": torch.from_numpy(sample.rollout_log_probs.astype("float32")),
        **{name: values[index] for name, values in tokens_of.items() if index in values},
        OURS: {
            "sample": sample.sample,
            "group": sample.group,
            "rollout": sample.rollout,
            "weight_versions": [sample.oldest_version, sample.newest_version],
        },
    }
