"""`PromptSource`: an endless stream of prompts from one file; the caller holds the position in it.

The source has no state: `take(position, n)` always gives the same rows for the same position. A run's position is a
fold of its events, so no prompt is lost or drawn twice when it is resumed.
"""

import functools
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

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
    """uint32 [rows]: the row at each index of `epoch`, by slime's rule: a shuffle of the original order.

    It is 0 .. rows - 1 after `random.seed(seed + epoch)` and `random.shuffle`, in 4 bytes a row instead of 40.
    """
    order = array("I", range(rows))
    random.Random(seed + epoch).shuffle(order)
    view = np.frombuffer(order, dtype=np.uint32)
    view.flags.writeable = False
    return view


class PromptSource:
    """The rows of `settings.prompt_data`, epoch after epoch, in file order or shuffled by `seed + epoch`.

    tokenizer: a transformers tokenizer; without one prompts have no tokens and chat templates cannot be rendered.
    max_prompt_len: tokens; longer prompts are bad rows. They keep their index in the order. slime removes
    them before it shuffles, so its order of the others differs. most: rows that are read at most.

    Opening it indexes the file once. `bad_lines`: lines that are no JSON objects; as in slime they are no rows.
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
        self.url, asked = parse_path(settings.prompt_data)
        bounds = asked or slice(None)
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
        """Rows of one epoch."""
        return len(self._rows)

    def take(self, position: int, n: int) -> list[PromptRow | BadRow]:
        """The next `n` prompts from a position of the stream on, over as many epochs as needed, with the bad rows
        between them. The next call goes on after the position of the last one.

        A bad row comes again in every epoch and counts once. Raises TooManyBadLines above `max_bad_lines`
        of them, DataError where a whole epoch has no usable row.
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
        """The unusable lines and rows until now, each once."""
        return [*self.bad_lines, *self._bad_rows.values()]

    def _why_empty(self) -> str:
        if len(self._reader):
            return "slice is empty"
        if not self.bad_lines:
            return "has no usable line: it is empty"
        first = self.bad_lines[0]
        is_list = isinstance(self._reader, JsonlReader) and self._reader.is_list
        hint = "; a JSON list is not read here: write one object a line, as with jq -c '.[]'" if is_list else ""
        return f"has no usable line ({len(self.bad_lines)} bad: {reasons_of(self.bad_lines)}){hint}\n  {first}"

    def row_at(self, epoch: int, place: int) -> int:
        """The row at an index of an epoch's order."""
        return int(epoch_order(len(self), self.seed, epoch)[place]) if self._settings.rollout_shuffle else place

    def read_row(self, row: int, *, epoch: int, position: int) -> PromptRow | BadRow:
        """One row, for a sampler. epoch, position: as the sampler counts."""
        (content,) = self._reader.read([self._rows[row]])
        return self._made(row, content, epoch, position)

    def in_file_order(self) -> list[PromptRow | BadRow]:
        """All rows."""
        fields = self._reader.read(list(self._rows))
        return [self._made(row, content, 0, row) for row, content in enumerate(fields)]

    def read(self, epoch: int, places: range) -> list[PromptRow | BadRow]:
        """The rows at these indices of an epoch's order. Raises TooManyBadLines."""
        rows = [self.row_at(epoch, place) for place in places]
        fields = self._reader.read([self._rows[row] for row in rows])
        return [
            self._made(row, content, epoch, epoch * len(self) + place)
            for place, row, content in zip(places, rows, fields, strict=True)
        ]

    def _made(self, row: int, content: dict[str, Any] | Problem, epoch: int, position: int) -> PromptRow | BadRow:
        made: Prompt | Problem
        if isinstance(content, Problem):
            made = content
        else:
            made = make_prompt(content, self._settings, self._tokenizer, self._max_prompt_len)
        line = self._reader.line(self._rows[row])
        if not isinstance(made, Problem):
            return PromptRow(row=row, epoch=epoch, position=position, line=line, **asdict(made))
        bad = BadRow(**asdict(made), file=self.url, line=line, epoch=epoch, position=position)
        self._bad_rows.setdefault(row, bad)
        if len(self.bad_lines) + len(self._bad_rows) > self._settings.max_bad_lines:
            raise too_many(self.refused, self._settings.max_bad_lines)
        return bad


def _keys(settings: DataSettings) -> tuple[str | None, ...]:
    return settings.input_key, settings.label_key, settings.metadata_key, settings.tool_key


def _last_needed(bounds: slice, most: int | None) -> int | None:
    """Rows that must be indexed for a slice. None is all: a negative bound counts from the end, and an empty slice is
    told from an empty file.
    """
    first, last = bounds.start or 0, bounds.stop
    if first < 0 or (last is not None and last <= 0):
        return None
    return min((stop for stop in (last, most and first + most) if stop is not None), default=None)


class EvalSource(NamedTuple):
    """The questions of a data set, and what it says of all of them."""

    source: PromptSource
    asked: EvalSet


def eval_sources(
    evaluation: EvalSettings, data: DataSettings, tokenizer: TokenizerSource | None = None, longest: int | None = None
) -> dict[str, EvalSource]:
    """The data sets of an evaluation by name. longest: tokens of a prompt, where evaluation has no limit of its own."""
    longest = longest if evaluation.eval_max_prompt_len is None else evaluation.eval_max_prompt_len
    return {
        name: EvalSource(PromptSource(eval_data(one, data), tokenizer=tokenizer, max_prompt_len=longest), one)
        for name, one in evaluation.sets().items()
    }


def eval_data(one: EvalSet, data: DataSettings) -> DataSettings:
    """The settings to read one data set of an evaluation."""
    return msgspec.structs.replace(
        data,
        prompt_data=one.path,
        input_key=one.input_key or data.input_key,
        label_key=data.label_key if one.label_key is None else one.label_key or None,
        tool_key=one.tool_key or data.tool_key,
        metadata_key=one.metadata_key or data.metadata_key,
        rollout_shuffle=False,
    )


def check_first_rows(settings: DataSettings) -> None:
    """Raises DataError where none of the first --max-bad-lines + 1 rows of `settings.prompt_data` is usable.

    A run on such a file would fail. Tokens and chat templates are not checked.
    """
    in_order = msgspec.structs.replace(settings, rollout_shuffle=False)
    PromptSource(in_order, tokenizer=_stand_in(settings), most=settings.max_bad_lines + 1).take(0, 1)


def first_rows(settings: DataSettings, most: int) -> list[PromptRow]:
    """The usable ones of the first `most` rows in the file's order, without tokens."""
    in_order = msgspec.structs.replace(settings, rollout_shuffle=False)
    source = PromptSource(in_order, tokenizer=_stand_in(settings), most=most)
    return [row for row in source.read(0, range(len(source))) if isinstance(row, PromptRow)]


def _stand_in(settings: DataSettings) -> Any:
    """None for chats to train on: their tokens are those of their own template alone."""
    return None if settings.supervised else _AnyText()


class _AnyText:
    """What rows need of a tokenizer: any text is one token, and any chat a text."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [0]

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **_: Any) -> str:
        return "chat"
