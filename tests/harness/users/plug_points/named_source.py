"""--data-source-path: every second prompt names the generate function that makes its rollouts."""

from __future__ import annotations

from slime.rollout.data_source import DataSource
from slime.utils.types import Sample


class TwoKinds(DataSource):
    def __init__(self, args) -> None:
        self.args, self.drawn = args, 0

    def get_samples(self, num_samples):
        groups = []
        for number in range(self.drawn, self.drawn + num_samples):
            path = "turn_by_name.py:short" if number % 2 else None
            groups.append([Sample(prompt=f"prompt {number}", label="1", generate_function_path=path)])
        self.drawn += num_samples
        return groups
