"""slime's `DataSource`: what a class of `--data-source-path` may inherit from, and what it has to have."""

from __future__ import annotations

import copy
from typing import Any

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.row import PromptRow
from slime_events.loop.prompts.source import START, PromptSource
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer

FIELDS = (
    "prompt_data",
    "input_key",
    "label_key",
    "metadata_key",
    "tool_key",
    "apply_chat_template",
    "apply_chat_template_kwargs",
    "rollout_shuffle",
    "max_bad_lines",
)


class DataSource:
    """Groups of samples to be made. A run asks only for `get_samples`, and draws on after a restart by asking a new
    instance for as many groups as were drawn before: the same instance gives the same groups in the same order.
    """

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next groups, at most so many; of each, the first sample's prompt, label and metadata are taken."""
        raise NotImplementedError(f"{type(self).__name__} has no get_samples")

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """slime gives unfinished groups back. Here they rest in the log, and nobody calls this."""

    def save(self, rollout_id: int) -> None:
        """slime's state on disk. Here the log is the state, and nobody calls this."""

    def load(self, rollout_id: int | None = None) -> None:
        """The same."""

    def __len__(self) -> int:
        """How many prompts there are in one pass; 0 where it cannot be said."""
        return 0


class RolloutDataSource(DataSource):
    """The rows of `args.prompt_data` after the chat template, each `args.n_samples_per_prompt` times; to be inherited
    from. Rows that cannot be used are left out, as in slime.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        settings = DataSettings(**{name: getattr(args, name) for name in FIELDS})
        self._source = PromptSource(settings, args.rollout_seed, load_tokenizer(args.hf_checkpoint))
        self._cursor, self._groups = START, 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        rows, self._cursor = self._source.take(self._cursor, num_samples)
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
