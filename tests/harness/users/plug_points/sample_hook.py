"""--rollout-sample-hook-path: shortens nothing, notes the length, and does not train on answers that were cut off."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


async def note_length(args, sample: Sample, *, rollout_id=None, evaluation=False) -> Sample:
    note("note_length", rollout_id=rollout_id, evaluation=evaluation)
    sample.metadata["length"] = sample.response_length
    sample.metadata["asked_at"] = rollout_id
    sample.metadata["evaluated"] = evaluation
    return sample


def mask_truncated(args, sample: Sample) -> None:
    if sample.status == Sample.Status.TRUNCATED:
        sample.remove_sample = True
