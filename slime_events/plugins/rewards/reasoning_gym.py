"""`reasoning_gym`: the generator's own scorer, with its partial credit.

The data set's line carries what the scorer needs: `metadata["entry"]` is the generated entry (question, answer,
metadata with source_dataset), or `metadata` has `source_dataset` itself and the label is the answer.
"""

from __future__ import annotations

import re
from typing import Any

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.sample import Sample, answer_of

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def reward(response: str, sample: Sample) -> float:
    """0.0 to 1.0 by the generator's `score_answer`. Raises ValueError where the sample does not name its generator."""
    entry = entry_of(sample)
    from reasoning_gym import get_score_answer_fn  # late: 1 s that only its users pay

    score = get_score_answer_fn(entry["metadata"]["source_dataset"])
    return float(score(extract_answer(response), entry))


def entry_of(sample: Sample) -> dict[str, Any]:
    """The entry that the scorer takes: question, answer and metadata with source_dataset."""
    entry = sample.metadata.get("entry")
    if entry is None:
        entry = {"question": sample.prompt, "answer": sample.label, "metadata": sample.metadata}
    if not isinstance(entry, dict) or "source_dataset" not in (entry.get("metadata") or {}):
        raise ValueError(
            "reasoning_gym needs the generator's name: put the generated entry into metadata.entry, "
            "or source_dataset into metadata"
        )
    return entry


def extract_answer(response: str) -> str:
    r"""The last `<answer>`, else the last `\boxed{}`, else all that follows the thinking."""
    answer = answer_of(response)
    if tagged := _TAGGED.findall(answer):
        return str(tagged[-1]).strip()
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed.strip()
