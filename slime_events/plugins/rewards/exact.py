"""`exact`: the answer equals the label exactly."""

from __future__ import annotations

from slime_events.plugins.sample import Sample, answer_of


def reward(response: str, sample: Sample) -> float:
    """Return 1.0 or 0.0."""
    return float(sample.label is not None and answer_of(response) == str(sample.label).strip())
