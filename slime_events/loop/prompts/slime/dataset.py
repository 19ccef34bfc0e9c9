"""slime's `Dataset`: the prompts of a file as `Sample`s, for users' data sources and rollout functions."""

from collections.abc import Iterator
from typing import Any

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.source import PromptSource, epoch_order
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import Tokenizer


def sample_of(row: PromptRow) -> Sample:
    """Return the sample of a row, as a data source returns it."""
    return Sample(prompt=row.as_given, label=row.label, metadata=row.metadata)


class Dataset:
    """Prompts of a JSONL or Parquet file, with an optional slice `@[a:b]` in `path`.

    Prompts longer than `max_length` tokens are removed before the shuffle, as in slime. Images are not supported.
    Raises DataError, TooManyBadLines.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Tokenizer | None,
        processor: Any = None,
        max_length: int | None = None,
        *,
        prompt_key: str = "text",
        multimodal_keys: dict[str, str] | None = None,
        label_key: str | None = None,
        tool_key: str | None = None,
        metadata_key: str = "metadata",
        seed: int = 42,
        apply_chat_template: bool = False,
        apply_chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if multimodal_keys:
            raise NotImplementedError("Dataset: models that see images are not built; leave multimodal_keys out")
        settings = DataSettings(
            prompt_data=path,
            input_key=prompt_key,
            label_key=label_key,
            tool_key=tool_key or "tools",
            metadata_key=metadata_key,
            apply_chat_template=apply_chat_template,
            apply_chat_template_kwargs=apply_chat_template_kwargs or {},
        )
        self._hold(PromptSource(settings, seed, tokenizer, max_length))

    @classmethod
    def of(cls, source: PromptSource) -> "Dataset":
        """Return the data set of an open file."""
        dataset = cls.__new__(cls)
        dataset._hold(source)
        return dataset

    def _hold(self, source: PromptSource) -> None:
        self.origin_samples = [sample_of(row) for row in source.in_file_order() if isinstance(row, PromptRow)]
        self.samples, self.seed, self.epoch_id = self.origin_samples, source.seed, -1

    def shuffle(self, new_epoch_id: int) -> None:
        """Put the samples into the order of an epoch, shuffled with `seed + epoch`."""
        if self.epoch_id != new_epoch_id:
            order = epoch_order(len(self.origin_samples), self.seed, new_epoch_id)
            self.samples, self.epoch_id = [self.origin_samples[row] for row in order], new_epoch_id

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)
