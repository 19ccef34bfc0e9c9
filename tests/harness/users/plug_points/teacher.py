"""--custom-rm-path with --use-opd: a teacher that finds each token a little less likely, and no reward."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


async def ask(args, sample: Sample, **kwargs) -> float:
    note("ask", tokens=sample.response_length)
    sample.teacher_log_probs = [student - 0.5 for student in sample.rollout_log_probs]
    return 0.0
