"""slime's data sources: the base class and interface for `--data-source-path`, its reader and its buffer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from schemas.errors import PlugPointError
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.buffer_filter import Groups, pop_first
from slime_events.loop.prompts.dataset import Dataset, sample_of
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer

STATE = "rollout/global_dataset_state_dict_{rollout_id}.pt"
"""Where a data source saves itself, under `args.save`: slime's file, which can be read as well."""


class DataSource:
    """A source of groups. A run calls `load(-1)` once, as slime's does at its start, then only `get_samples`. After a
    restart it asks a new instance for the groups that were drawn before, so every instance must give the same groups in
    the same order.
    """

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next groups, at most so many; the first sample of each gives prompt, label and metadata."""
        raise NotImplementedError(f"{type(self).__name__} has no get_samples")

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """slime returns unfinished groups. Here they stay in the log; this is never called."""

    def save(self, rollout_id: int) -> None:
        """slime saves its state. Here the log is the state; this is never called."""

    def load(self, rollout_id: int | None = None) -> None:
        """Get ready to give the first group."""

    def __len__(self) -> int:
        """Prompts in one pass; 0 where unknown."""
        return 0


class RolloutDataSource(DataSource):
    """The rows of `args.prompt_data` after the chat template, each `args.n_samples_per_prompt` times; without a file,
    or with `args.rollout_global_dataset` off, empty samples. Unusable rows are left out, as in slime.

    epoch_id, sample_offset: the place in the file; sample_group_index, sample_index: of the next group and sample.
    The file is streamed, until a class of one's own looks at `dataset`.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = self.sample_offset = self.sample_group_index = self.sample_index = 0
        self.metadata: dict[str, Any] = {}
        self._prompts: PromptSource | None = None
        self._dataset: Dataset | None = None
        if getattr(args, "prompt_data", None) and getattr(args, "rollout_global_dataset", True):
            names = DataSettings.__struct_fields__
            settings = DataSettings(**{name: getattr(args, name) for name in names if hasattr(args, name)})
            checkpoint = getattr(args, "hf_checkpoint", None)
            self._prompts = PromptSource(
                settings, args.rollout_seed, load_tokenizer(checkpoint) if checkpoint else None
            )

    @property
    def dataset(self) -> Dataset | None:
        """slime's, in memory, whose samples may be changed: from now on groups are drawn of it."""
        if self._dataset is None and self._prompts is not None:
            self._dataset = Dataset.of(self._prompts)
            self._shuffle(self._dataset)
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: Dataset) -> None:
        self._dataset = dataset

    @property
    def _has_prompts(self) -> bool:
        return self._prompts is not None or self._dataset is not None

    def _shuffle(self, dataset: Dataset) -> None:
        if getattr(self.args, "rollout_shuffle", False):
            dataset.shuffle(self.epoch_id)

    def get_samples(self, num_samples: int) -> Groups:
        """So many groups, over as many epochs as they take (slime's gives fewer than asked for at its second wrap)."""
        if self._dataset is not None:
            return list(map(self._group, self._take(self._dataset, num_samples)))
        if self._prompts is None:
            return [self._group(Sample()) for _ in range(num_samples)]
        position = self.epoch_id * len(self._prompts) + self.sample_offset
        rows = self._prompts.take(position, num_samples)
        if rows:
            # As slime counts: at the end of an epoch, not at the start of the next.
            self.epoch_id, last = divmod(position + len(rows) - 1, len(self._prompts))
            self.sample_offset = last + 1
        return [self._group(sample_of(row)) for row in rows if isinstance(row, PromptRow)]

    def _take(self, dataset: Dataset, count: int) -> list[Sample]:
        taken: list[Sample] = []
        while dataset.samples and len(taken) < count:
            if self.sample_offset >= len(dataset.samples):
                self.epoch_id, self.sample_offset = self.epoch_id + 1, 0
                self._shuffle(dataset)
            part = dataset.samples[self.sample_offset : self.sample_offset + count - len(taken)]
            self.sample_offset += len(part)
            taken += part
        return taken

    def _group(self, prompt: Sample) -> list[Sample]:
        group = [copy.deepcopy(prompt) for _ in range(int(self.args.n_samples_per_prompt))]
        for sample in group:
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
        self.sample_group_index += 1
        return group

    def add_samples(self, samples: Groups) -> None:
        """Raises PlugPointError: it only reads."""
        raise PlugPointError(f"{type(self).__name__} takes no samples: inherit from RolloutDataSourceWithBuffer")

    def save(self, rollout_id: int) -> None:
        """Write `state` under `args.save`."""
        if not self._has_prompts:
            return
        import torch

        path = Path(self.args.save) / STATE.format(rollout_id=rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.state(), path)

    def load(self, rollout_id: int | None = None) -> None:
        """Go on from what was saved under `args.load`; from the start where nothing was."""
        folder = getattr(self.args, "load", None)
        path = Path(folder or "") / STATE.format(rollout_id=rollout_id)
        if not self._has_prompts or folder is None or not path.exists():
            return
        import torch

        self.restore(torch.load(path, weights_only=True))
        if self._dataset is not None:
            self._shuffle(self._dataset)

    def state(self) -> dict[str, Any]:
        """Plain values that `restore` takes."""
        names = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what had this state."""
        for name in ("sample_offset", "epoch_id", "sample_group_index", "sample_index"):
            setattr(self, name, state.get(name, 0))
        self.metadata = state.get("metadata", {})

    def __len__(self) -> int:
        rows = self._prompts if self._dataset is None else self._dataset
        return 0 if rows is None else len(rows)


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """slime's default: groups that were given back come first, as `args.buffer_filter_path` chooses (called with
    `(args, None, buffer, n)`; else the oldest first), then those of the file.

    The buffer is saved with the rest; slime loses it at a restart.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: Groups = []
        path = getattr(args, "buffer_filter_path", None)
        self.buffer_filter = load_function(path) if path else pop_first

    def get_samples(self, num_samples: int) -> Groups:
        """Of the buffer, and the rest of the file. Raises PlugPointError where there is no file for the rest."""
        groups = list(self._get_samples_from_buffer(num_samples))
        if len(groups) == num_samples:
            return groups
        if not self._has_prompts:
            raise PlugPointError(
                f"{len(groups)} groups are in the buffer and {num_samples} are asked for: add groups, or give "
                "--prompt-data"
            )
        return groups + super().get_samples(num_samples - len(groups))

    def _get_samples_from_buffer(self, num_samples: int) -> Groups:
        """Of the buffer alone; under slime's name, to be overridden."""
        if not self.buffer or not num_samples:
            return []
        return list(self.buffer_filter(self.args, None, self.buffer, num_samples))

    def add_samples(self, samples: Groups) -> None:
        """Groups to be drawn before others. Raises PlugPointError for one that is not of `n_samples_per_prompt`."""
        size = int(self.args.n_samples_per_prompt)
        for number, group in enumerate(samples):
            if not isinstance(group, list) or len(group) != size:
                raise PlugPointError(f"add_samples takes lists of {size} samples: group {number} is none: {group!r}")
        self.buffer.extend(samples)

    def state(self) -> dict[str, Any]:
        return super().state() | {"buffer": _plain(self.buffer)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.buffer = _samples(state.get("buffer", []))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to what is saved beside the place."""
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        """What is saved beside the place."""
        return self.metadata

    def get_buffer_length(self) -> int:
        """Groups in the buffer."""
        return len(self.buffer)


def _plain(value: Any) -> Any:
    """Samples, in lists of any depth, as plain values."""
    return [_plain(one) for one in value] if isinstance(value, list) else value.to_dict()


def _samples(value: Any) -> Any:
    """The inverse of `_plain`."""
    return [_samples(one) for one in value] if isinstance(value, list) else Sample.from_dict(value)
