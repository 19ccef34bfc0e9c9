"""--custom-rm-path: of a sample (a dict, with --reward-key score), and of a whole group, with --group-rm."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


async def score(args, sample: Sample, **kwargs) -> dict:
    answer = sample.response.rpartition("</think>")[2].removesuffix("<|im_end|>").strip()
    note("score", label=sample.label)
    return {"score": float(answer == sample.label) + args.bonus * bool(answer), "said": answer}


async def rank(args, samples: list[Sample], **kwargs) -> list[float]:
    """The shortest of a group has 1, the longest 0."""
    note("rank", samples=len(samples))
    order = sorted(samples, key=lambda sample: (sample.response_length, sample.index))
    return [1 - order.index(sample) / max(1, len(samples) - 1) for sample in samples]
