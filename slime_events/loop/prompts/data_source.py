"""slime's `DataSource`: the base class and interface for `--data-source-path`."""

import copy
from typing import Any

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer


class DataSource:
    """A source of groups. A run calls only `get_samples`. After a restart it asks a new instance for the groups
    that were drawn before, so every instance must give the same groups in the same order.
    """

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next groups, at most so many; the first sample of each gives prompt, label and metadata."""
        raise NotImplementedError(f"{type(self).__name__} has no get_samples")

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """slime returns unfinished groups. Here they stay in the log; this is never called."""

    def save(self, rollout_id: int) -> None:
        """slime saves its state. Here the log is the state; this is never called."""

    def load(self, rollout_id: int | None = None) -> None:
        """As `save`: never called."""

    def __len__(self) -> int:
        """Prompts in one pass; 0 where unknown."""
        return 0


class RolloutDataSource(DataSource):
    """The rows of `args.prompt_data` after the chat template, each `args.n_samples_per_prompt` times. Unusable rows are
    left out, as in slime.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        names = DataSettings.__struct_fields__
        settings = DataSettings(**{name: getattr(args, name) for name in names if hasattr(args, name)})
        self._source = PromptSource(settings, args.rollout_seed, load_tokenizer(args.hf_checkpoint))
        self._position = self._groups = 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        rows = self._source.take(self._position, num_samples)
        self._position += len(rows)
        return [self._group(row) for row in rows if isinstance(row, PromptRow)]

    def _group(self, row: PromptRow) -> list[Sample]:
        number, size = self._groups, int(self.args.n_samples_per_prompt)
        self._groups += 1
        return [
            Sample(
                group_index=number,
                index=number * size + index,
                prompt=row.text,
                label=row.label,
                metadata=copy.deepcopy(row.metadata),
            )
            for index in range(size)
        ]

    def __len__(self) -> int:
        return len(self._source)
