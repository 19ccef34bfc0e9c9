"""slime's data sources: the interface for `--data-source-path`, the file reader and the reader with a buffer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from schemas.errors import PlugPointError
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.buffer_filter import Groups, pop_first
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.slime.dataset import Dataset, sample_of
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer

STATE = "rollout/global_dataset_state_dict_{rollout_id}.pt"
"""File of a data source's state under `args.save`, which is slime's file; slime's own files can be read too."""


class DataSource:
    """A source of groups.

    A run calls `load(-1)` once, as slime does at its start, then only `get_samples`. After a restart it asks a new
    instance for the groups that were drawn before, so every instance must return the same groups in the same order.
    """

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Return at most `num_samples` groups; the first sample of each has the prompt, label and metadata."""
        raise NotImplementedError(f"{type(self).__name__} has no get_samples")

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take back unfinished groups. slime calls this; here such groups stay in the log, and it is never called."""

    def save(self, rollout_id: int) -> None:
        """Save the state. slime calls this; here the log is the state, and it is never called."""

    def load(self, rollout_id: int | None = None) -> None:
        """Prepare to return the first group."""

    def __len__(self) -> int:
        """Return the prompts in a pass; 0 if unknown."""
        return 0


class RolloutDataSource(DataSource):
    """The rows of `args.prompt_data` after the chat template, each `args.n_samples_per_prompt` times.

    Without a file, or with `args.rollout_global_dataset` off, it returns empty samples. Unusable rows are left out, as
    in slime. epoch_id, sample_offset: position in the file. sample_group_index, sample_index: of the next group and
    sample. The file is streamed until a subclass reads `dataset`.
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
        """slime's data set in memory, whose samples may be changed: from then on groups are drawn from it."""
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
        """Return `num_samples` groups, over as many epochs as needed (slime returns fewer at its second wrap)."""
        if self._dataset is not None:
            return list(map(self._group, self._take(self._dataset, num_samples)))
        if self._prompts is None:
            return [self._group(Sample()) for _ in range(num_samples)]
        position = self.epoch_id * len(self._prompts) + self.sample_offset
        rows = self._prompts.take(position, num_samples)
        if rows:
            # In slime's count this is the end of an epoch, not the start of the next.
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
        """Raise PlugPointError: this class only reads."""
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
        """Restore the state saved under `args.load`; without a saved state, start from the beginning."""
        folder = getattr(self.args, "load", None)
        path = Path(folder or "") / STATE.format(rollout_id=rollout_id)
        if not self._has_prompts or folder is None or not path.exists():
            return
        import torch

        self.restore(torch.load(path, weights_only=True))
        if self._dataset is not None:
            self._shuffle(self._dataset)

    def state(self) -> dict[str, Any]:
        """Return plain values for `restore`."""
        names = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state from `state`."""
        for name in ("sample_offset", "epoch_id", "sample_group_index", "sample_index"):
            setattr(self, name, state.get(name, 0))
        self.metadata = state.get("metadata", {})

    def __len__(self) -> int:
        rows = self._prompts if self._dataset is None else self._dataset
        return 0 if rows is None else len(rows)


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """slime's default: groups that were given back come first, then those of the file.

    `args.buffer_filter_path`, called with `(args, None, buffer, n)`, selects groups of the buffer; the default takes
    the oldest first. The buffer is saved with the rest of the state; slime loses it at a restart.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: Groups = []
        path = getattr(args, "buffer_filter_path", None)
        self.buffer_filter = load_function(path) if path else pop_first

    def get_samples(self, num_samples: int) -> Groups:
        """Return groups of the buffer, and the rest from the file. Raises PlugPointError if there is no file."""
        groups = list(self._get_samples_from_buffer(num_samples))
        if len(groups) == num_samples:
            return groups
        if not self._has_prompts:
            raise PlugPointError(
                f"{len(groups)} groups are in the buffer and {num_samples} are requested: add groups, or give "
                "--prompt-data"
            )
        return groups + super().get_samples(num_samples - len(groups))

    def _get_samples_from_buffer(self, num_samples: int) -> Groups:
        """Return groups of the buffer only. It has slime's name so that subclasses can override it."""
        if not self.buffer or not num_samples:
            return []
        return list(self.buffer_filter(self.args, None, self.buffer, num_samples))

    def add_samples(self, samples: Groups) -> None:
        """Add groups that are drawn before others. Raises PlugPointError for a group without `n_samples_per_prompt`."""
        size = int(self.args.n_samples_per_prompt)
        for number, group in enumerate(samples):
            if not isinstance(group, list) or len(group) != size:
                raise PlugPointError(f"add_samples takes lists of {size} samples: group {number} is not one: {group!r}")
        self.buffer.extend(samples)

    def state(self) -> dict[str, Any]:
        return super().state() | {"buffer": _plain(self.buffer)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.buffer = _samples(state.get("buffer", []))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata that is saved with the position."""
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata that is saved with the position."""
        return self.metadata

    def get_buffer_length(self) -> int:
        """Return the number of groups in the buffer."""
        return len(self.buffer)


def _plain(value: Any) -> Any:
    """Return samples, in lists of any depth, as plain values."""
    return [_plain(item) for item in value] if isinstance(value, list) else value.to_dict()


def _samples(value: Any) -> Any:
    """Return the samples of `_plain`."""
    return [_samples(item) for item in value] if isinstance(value, list) else Sample.from_dict(value)
