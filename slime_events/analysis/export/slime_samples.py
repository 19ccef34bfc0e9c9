"""Exported samples as slime's, numbered within their file."""

from __future__ import annotations

from collections.abc import Sequence

from slime_events.analysis.export.sample import ExportedSample
from slime_events.plugins.sample import FINISH, Sample, Status

OURS = "slime_events"
"""Under which a sample's metadata has what slime has no field for."""


def as_slime(rows: Sequence[ExportedSample]) -> list[Sample]:
    """One for each. Groups are numbered in the order that they come in, and so are rollouts: samples of one rollout
    share its `rollout_id`, as in slime.
    """
    groups = {group: place for place, group in enumerate(dict.fromkeys(row.group for row in rows))}
    rollouts = {name: place for place, name in enumerate(dict.fromkeys(row.rollout or row.sample for row in rows))}
    return [
        _sample(row, groups[row.group], rollouts[row.rollout or row.sample], place) for place, row in enumerate(rows)
    ]


def _sample(row: ExportedSample, group_index: int, rollout_id: int, index: int) -> Sample:
    return Sample(
        group_index=group_index,
        index=index,
        rollout_id=rollout_id,
        prompt=row.prompt,
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
                "rollout": row.rollout or row.sample,
                "group": row.group,
                "messages": row.messages,
                "detail": row.reward_detail,
                "spans": [list(span) for span in row.spans],
                "tools": row.tools,
            },
        },
        session_id=row.sample,
    )
