"""`ExportedPrompt`: a prompt of a run as a line that `--prompt-data` reads."""

from __future__ import annotations

from typing import Any

import msgspec

from slime_events.analysis.export.sample import ExportedSample


class ExportedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """input: the chat where there was one (for --apply-chat-template), else the text. rewards: of its samples."""

    input: str | list[dict[str, Any]]
    label: str | None
    metadata: dict[str, Any]
    tools: list[dict[str, Any]] | None
    group: str
    rewards: list[float | None]


def prompts_of(samples: list[ExportedSample]) -> list[ExportedPrompt]:
    """One for each group, in order."""
    groups: dict[str, list[ExportedSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return [
        ExportedPrompt(
            input=members[0].group_prompt or members[0].messages or members[0].prompt,
            label=members[0].label,
            metadata=members[0].metadata,
            tools=members[0].tools,
            group=group,
            rewards=[member.reward for member in members],
        )
        for group, members in groups.items()
    ]
