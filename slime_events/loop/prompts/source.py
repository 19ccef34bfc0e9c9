"""`PromptSource`: an endless stream of prompts from a file; the caller has the position in it.

The source has no state: `take(position, n)` always returns the same rows for the same position. A run's position is a
fold of its events, so no prompt is lost or drawn twice when the run is resumed.
"""

import functools
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from schemas.doc import doc
from schemas.errors import DataError, ImpossibleCombination, InvalidValue
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.loop.prompts.data_file import DataFile, parse_path
from slime_events.loop.prompts.prompt import BadRow, Problem, Prompt, PromptRow, make_prompt
from slime_events.loop.prompts.reader import JsonlReader, open_reader, too_many
from slime_events.loop.prompts.refusals import reasons_of
from slime_events.plugins.tokenizer import TokenizerSource


@functools.lru_cache(maxsize=2)
def epoch_order(rows: int, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """Return uint32 [rows]: the row at each index of `epoch`, by slime's rule: a shuffle of the original order.

    It equals 0 .. rows - 1 after `random.seed(seed + epoch)` and `random.shuffle`, in 4 bytes per row instead of 40.
    """
    order = array("I", range(rows))
    random.Random(seed + epoch).shuffle(order)
    view = np.frombuffer(order, dtype=np.uint32)
    view.flags.writeable = False
    return view


class PromptSource:
    """The rows of `settings.prompt_data`, epoch after epoch, in file order or shuffled by `seed + epoch`.

    tokenizer: a transformers tokenizer; without it prompts have no tokens, and chat templates cannot be rendered.
    max_prompt_len: tokens; longer prompts are bad rows, and keep their index in the order. slime removes them before
    the shuffle, so its order of the rest differs. most: most rows to read.

    Opening it indexes the file once. `bad_lines`: lines that are not JSON objects; as in slime, they are not rows.
    Raises DataError (no file, no rows), TooManyBadLines, ImpossibleCombination.
    """

    def __init__(
        self,
        settings: DataSettings,
        seed: int = 42,
        tokenizer: TokenizerSource | None = None,
        max_prompt_len: int | None = None,
        *,
        most: int | None = None,
    ) -> None:
        if settings.prompt_data is None:
            raise InvalidValue("--prompt-data is missing: a .jsonl or .parquet file")
        if settings.apply_chat_template and tokenizer is None and not settings.supervised:
            raise ImpossibleCombination("--apply-chat-template needs a tokenizer: give --hf-checkpoint")
        self._settings, self.seed = settings, seed
        self._tokenizer, self._max_prompt_len = tokenizer, max_prompt_len
        self.url, requested = parse_path(settings.prompt_data)
        bounds = requested or slice(None)
        stop = _last_needed(bounds, most)
        self._reader = open_reader(
            DataFile(self.url),
            stop=stop,
            max_bad_lines=settings.max_bad_lines,
            used=[key for key in _keys(settings) if key is not None],
            sparse=[settings.input_key, settings.tool_key],
        )
        self._rows = range(len(self._reader))[bounds][:most]
        self.bad_lines: Sequence[BadRow] = self._reader.bad_lines
        self._bad_rows: dict[int, BadRow] = {}
        if not self._rows:
            raise DataError(f"{settings.prompt_data}: {self._why_empty()}")

    def __len__(self) -> int:
        """Return the rows of an epoch."""
        return len(self._rows)

    def take(self, position: int, n: int) -> list[PromptRow | BadRow]:
        """Return the next `n` prompts from a position of the stream, with the bad rows between them.

        They may span several epochs. The next call continues after the position of the last row. A bad row recurs in
        every epoch and counts once. Raises TooManyBadLines if there are more than `max_bad_lines`, and DataError if a
        whole epoch has no usable row.
        """
        taken: list[PromptRow | BadRow] = []
        good = fruitless = 0
        while good < n:
            epoch, start = divmod(position, len(self))
            rows = self.read(epoch, range(start, min(start + n - good, len(self))))
            for row in rows:
                good += isinstance(row, PromptRow)
                fruitless = 0 if isinstance(row, PromptRow) else fruitless + 1
            taken += rows
            position += len(rows)
            if fruitless >= len(self):
                bad = list(self._bad_rows.values())
                raise DataError(
                    f"{self._settings.prompt_data}: none of its {len(self)} rows is usable: {reasons_of(bad)}\n"
                    f"  {bad[0]}"
                )
        return taken

    @property
    def refused(self) -> list[BadRow]:
        """The unusable lines and rows so far, each once."""
        return [*self.bad_lines, *self._bad_rows.values()]

    def _why_empty(self) -> str:
        if len(self._reader):
            return "slice is empty"
        if not self.bad_lines:
            return "has no usable line: it is empty"
        first = self.bad_lines[0]
        is_list = isinstance(self._reader, JsonlReader) and self._reader.is_list
        hint = "; a JSON list is not supported: write an object per line, as with jq -c '.[]'" if is_list else ""
        return f"has no usable line ({len(self.bad_lines)} bad: {reasons_of(self.bad_lines)}){hint}\n  {first}"

    def row_at(self, epoch: int, index: int) -> int:
        """Return the row at an index of an epoch's order."""
        return int(epoch_order(len(self), self.seed, epoch)[index]) if self._settings.rollout_shuffle else index

    def read_row(self, row: int, *, epoch: int, position: int) -> PromptRow | BadRow:
        """Return a row, for a sampler. epoch, position: in the sampler's numbering."""
        (content,) = self._reader.read([self._rows[row]])
        return self._row(row, content, epoch, position)

    def in_file_order(self) -> list[PromptRow | BadRow]:
        """Return all rows in the file's order."""
        fields = self._reader.read(list(self._rows))
        return [self._row(row, content, 0, row) for row, content in enumerate(fields)]

    def read(self, epoch: int, indices: range) -> list[PromptRow | BadRow]:
        """Return the rows at these indices of an epoch's order. Raises TooManyBadLines."""
        rows = [self.row_at(epoch, index) for index in indices]
        fields = self._reader.read([self._rows[row] for row in rows])
        return [
            self._row(row, content, epoch, epoch * len(self) + index)
            for index, row, content in zip(indices, rows, fields, strict=True)
        ]

    def _row(self, row: int, content: dict[str, Any] | Problem, epoch: int, position: int) -> PromptRow | BadRow:
        prompt: Prompt | Problem
        if isinstance(content, Problem):
            prompt = content
        else:
            prompt = make_prompt(content, self._settings, self._tokenizer, self._max_prompt_len)
        line = self._reader.line(self._rows[row])
        if not isinstance(prompt, Problem):
            return PromptRow(row=row, epoch=epoch, position=position, line=line, **asdict(prompt))
        bad = BadRow(**asdict(prompt), file=self.url, line=line, epoch=epoch, position=position)
        self._bad_rows.setdefault(row, bad)
        if len(self.bad_lines) + len(self._bad_rows) > self._settings.max_bad_lines:
            raise too_many(self.refused, self._settings.max_bad_lines)
        return bad


def _keys(settings: DataSettings) -> tuple[str | None, ...]:
    return settings.input_key, settings.label_key, settings.metadata_key, settings.tool_key


def _last_needed(bounds: slice, most: int | None) -> int | None:
    """Return how many rows must be indexed for a slice; None: all.

    All are needed for a negative bound, which counts from the end, and to tell an empty slice from an empty file.
    """
    first, last = bounds.start or 0, bounds.stop
    if first < 0 or (last is not None and last <= 0):
        return None
    return min((stop for stop in (last, most and first + most) if stop is not None), default=None)


class EvalSource(NamedTuple):
    """The questions of a data set."""

    source: PromptSource
    dataset: Annotated[EvalSet, doc("settings of the data set")]


def eval_sources(
    evaluation: EvalSettings, data: DataSettings, tokenizer: TokenizerSource | None = None, longest: int | None = None
) -> dict[str, EvalSource]:
    """Return the data sets of an evaluation by name. longest: tokens of a prompt, if evaluation has no own limit."""
    longest = longest if evaluation.eval_max_prompt_len is None else evaluation.eval_max_prompt_len
    return {
        name: EvalSource(PromptSource(eval_data(dataset, data), tokenizer=tokenizer, max_prompt_len=longest), dataset)
        for name, dataset in evaluation.sets().items()
    }


def eval_data(dataset: EvalSet, data: DataSettings) -> DataSettings:
    """Return the settings to read a data set of an evaluation with."""
    return msgspec.structs.replace(
        data,
        prompt_data=dataset.path,
        input_key=dataset.input_key or data.input_key,
        label_key=data.label_key if dataset.label_key is None else dataset.label_key or None,
        tool_key=dataset.tool_key or data.tool_key,
        metadata_key=dataset.metadata_key or data.metadata_key,
        rollout_shuffle=False,
    )


def check_first_rows(settings: DataSettings) -> None:
    """Raise DataError if none of the first --max-bad-lines + 1 rows of `settings.prompt_data` is usable.

    A run on such a file would fail. Tokens and chat templates are not checked.
    """
    in_order = msgspec.structs.replace(settings, rollout_shuffle=False)
    PromptSource(in_order, tokenizer=_stand_in(settings), most=settings.max_bad_lines + 1).take(0, 1)


def first_rows(settings: DataSettings, most: int) -> list[PromptRow]:
    """Return the usable rows among the first `most` in the file's order, without tokens."""
    in_order = msgspec.structs.replace(settings, rollout_shuffle=False)
    source = PromptSource(in_order, tokenizer=_stand_in(settings), most=most)
    return [row for row in source.read(0, range(len(source))) if isinstance(row, PromptRow)]


def _stand_in(settings: DataSettings) -> Any:
    """Return a tokenizer for checks; None for chats to train on, whose tokens come only from their own template."""
    return None if settings.supervised else _AnyText()


class _AnyText:
    """The part of a tokenizer that rows need: any text is one token, and any chat is a text."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [0]

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **_: Any) -> str:
        return "chat"
