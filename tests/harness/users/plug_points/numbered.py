"""--data-source-path: slime's data source; its prompts say which one they are."""

from __future__ import annotations

from called import note
from slime.rollout.data_source import RolloutDataSource


class Numbered(RolloutDataSource):
    def __init__(self, args) -> None:
        super().__init__(args)
        note("Numbered", prompts=len(self))

    def get_samples(self, num_samples):
        groups = super().get_samples(num_samples)
        note("get_samples", asked=num_samples, given=len(groups))
        for group in groups:
            for sample in group:
                sample.metadata["number"] = group[0].group_index
        return groups
