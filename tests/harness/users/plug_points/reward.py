"""--custom-rm-path: of a sample (a dict, with --reward-key score), and of a whole group, with --group-rm."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


async def score(args, sample: Sample, **kwargs) -> dict:
    said = sample.response.rpartition("</think>")[2].removesuffix("<|im_end|>").strip()
    note("score", label=sample.label)
    return {"score": float(said == sample.label) + args.bonus * bool(said), "said": said}


async def rank(args, samples: list[Sample], **kwargs) -> list[float]:
    """The shortest of a group has 1, the longest 0."""
    note("rank", samples=len(samples))
    order = sorted(samples, key=lambda one: (one.response_length, one.index))
    return [1 - order.index(sample) / max(1, len(samples) - 1) for sample in samples]
