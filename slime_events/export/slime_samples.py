"""Exported samples as slime's, numbered within their file."""

from __future__ import annotations

from collections.abc import Sequence

from slime_events.export.sample import ExportedSample, Fate
from slime_events.sample import FINISH, Sample, Status

OURS = "slime_events"
"""Under which a sample's metadata has what slime has no field for."""


def as_slime(rows: Sequence[ExportedSample]) -> list[Sample]:
    """One for each, groups numbered in the order that they come in."""
    groups = {group: place for place, group in enumerate(dict.fromkeys(row.group for row in rows))}
    return [_sample(row, groups[row.group], place) for place, row in enumerate(rows)]


def _sample(row: ExportedSample, group_index: int, index: int) -> Sample:
    return Sample(
        group_index=group_index,
        index=index,
        rollout_id=None if row.fate is Fate.REJECTED else row.step,
        prompt=row.messages or row.prompt,
        tokens=row.tokens,
        response=row.response,
        response_length=row.response_length,
        label=row.label,
        reward=row.reward,
        loss_mask=row.loss_mask,
        weight_versions=[str(version) for _, _, version in row.spans],
        rollout_log_probs=row.log_probs,
        status=FINISH.get(row.stop or "", Status.PENDING),
        metadata={
            **row.metadata,
            OURS: {
                "run": row.run,
                "sample": row.sample,
                "group": row.group,
                "text": row.prompt,
                "detail": row.reward_detail,
                "spans": [list(span) for span in row.spans],
                "tools": row.tools,
            },
        },
        session_id=row.sample,
    )
