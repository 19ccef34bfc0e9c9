"""`PromptSource`: an endless stream of prompts from one file; the caller holds the cursor.

The source has no state: `take(cursor, n)` always gives the same rows for the same cursor. A run's cursor is a fold of
its events, so no prompt is lost or drawn twice when it is resumed.
"""

import dataclasses
import functools
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.errors import DataError, ImpossibleCombination, InvalidValue
from slime_events.core.config.data import DataSettings
from slime_events.core.config.rollout import EvalSettings
from slime_events.loop.prompts.prompt import BadRow, Problem, PromptRow, Tokenizer, make_prompt
from slime_events.loop.prompts.reader import DataFile, bad_line, is_parquet, lines_of, open_reader, parse_path, too_many


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


class Cursor(msgspec.Struct, frozen=True, order=True):
    """A position in the stream. offset: rows drawn of this epoch; may equal the source's length (slime's counting)."""

    epoch: int = 0
    offset: int = 0


START = Cursor()


class PromptSource:
    """The rows of `settings.prompt_data`, epoch after epoch, in file order or shuffled by `seed + epoch`.

    tokenizer: a transformers tokenizer; without one prompts have no tokens and chat templates cannot be rendered.
    max_prompt_len: tokens; longer prompts are bad rows. They keep their index in the order. slime removes
    them before it shuffles, so its order of the others differs.

    Opening it indexes the file once. `bad_lines`: lines that are no JSON objects; as in slime they are no rows.
    Raises DataError (no file, no rows), TooManyBadLines, ImpossibleCombination.
    """

    def __init__(
        self,
        settings: DataSettings,
        seed: int = 42,
        tokenizer: Tokenizer | None = None,
        max_prompt_len: int | None = None,
    ) -> None:
        if settings.prompt_data is None:
            raise InvalidValue("--prompt-data is missing: a .jsonl or .parquet file")
        if settings.apply_chat_template and tokenizer is None:
            raise ImpossibleCombination("--apply-chat-template needs a tokenizer: give --hf-checkpoint")
        self._settings = settings
        self._seed = seed
        self._tokenizer = tokenizer
        self._max_prompt_len = max_prompt_len
        self.url, rows = parse_path(settings.prompt_data)
        self._file = DataFile(self.url)
        self._reader = open_reader(self._file, stop=_stop(rows), max_bad_lines=settings.max_bad_lines)
        self._rows = range(len(self._reader))[rows or slice(None)]
        self.bad_lines: Sequence[BadRow] = self._reader.bad_lines
        self._bad_rows: dict[int, BadRow] = {}
        if not self._rows:
            empty = f"has no usable line ({len(self.bad_lines)} bad)" if not len(self._reader) else "slice is empty"
            raise DataError(f"{settings.prompt_data}: {empty}")

    def __len__(self) -> int:
        """Rows of one epoch."""
        return len(self._rows)

    def take(self, cursor: Cursor, n: int) -> tuple[list[PromptRow | BadRow], Cursor]:
        """The next `n` prompts over as many epochs as needed, with the bad rows between them, and the new cursor.

        A bad row comes again in every epoch and counts once. Raises TooManyBadLines above `max_bad_lines`
        of them, DataError where a whole epoch has no usable row.
        """
        taken: list[PromptRow | BadRow] = []
        good = fruitless = 0
        while good < n:
            cursor, places = self._next_places(cursor, n - good)
            for row in self._read(cursor.epoch, places):
                taken.append(row)
                good += isinstance(row, PromptRow)
                fruitless = 0 if isinstance(row, PromptRow) else fruitless + 1
            cursor = Cursor(cursor.epoch, places.stop)
            if fruitless >= len(self):
                raise DataError(f"{self._settings.prompt_data}: none of its {len(self)} rows is usable; {taken[-1]}")
        return taken, cursor

    def row_at(self, epoch: int, place: int) -> int:
        """The row at an index of an epoch's order."""
        return int(epoch_order(len(self), self._seed, epoch)[place]) if self._settings.rollout_shuffle else place

    def read_row(self, row: int, *, epoch: int, position: int) -> PromptRow | BadRow:
        """One row, for a sampler. epoch, position: as the sampler counts."""
        (content,) = self._reader.read([self._rows[row]])
        return self._made(row, content, epoch, position)

    def cursor_after(self, position: int) -> Cursor:
        """The cursor after the row at `position` (-1: the beginning)."""
        epoch, place = divmod(position, len(self))
        return Cursor(epoch, place + 1) if position >= 0 else START

    def _next_places(self, cursor: Cursor, n: int) -> tuple[Cursor, range]:
        """Up to `n` indices of one epoch, wrapping at its end."""
        if cursor.offset >= len(self):
            cursor = Cursor(cursor.epoch + 1, 0)
        return cursor, range(cursor.offset, min(cursor.offset + n, len(self)))

    def _read(self, epoch: int, places: range) -> list[PromptRow | BadRow]:
        rows = list(places)
        if self._settings.rollout_shuffle:
            rows = epoch_order(len(self), self._seed, epoch)[places.start : places.stop].tolist()
        fields = self._reader.read([self._rows[row] for row in rows])
        return [
            self._made(row, content, epoch, epoch * len(self) + place)
            for place, row, content in zip(places, rows, fields, strict=True)
        ]

    def _made(self, row: int, content: dict[str, Any], epoch: int, position: int) -> PromptRow | BadRow:
        made = make_prompt(content, self._settings, self._tokenizer, self._max_prompt_len)
        line = self._reader.line(self._rows[row])
        if isinstance(made, Problem):
            return self._bad(row, line, made, epoch, position)
        content_of = {one.name: getattr(made, one.name) for one in dataclasses.fields(made)}
        return PromptRow(row=row, epoch=epoch, position=position, line=line, **content_of)

    def _bad(self, row: int, line: int, problem: Problem, epoch: int, position: int) -> BadRow:
        bad = BadRow(
            file=self.url, line=line, reason=problem.reason, message=problem.message, epoch=epoch, position=position
        )
        self._bad_rows.setdefault(row, bad)
        distinct = [*self.bad_lines, *self._bad_rows.values()]
        if len(distinct) > self._settings.max_bad_lines:
            raise too_many(distinct, self._settings.max_bad_lines)
        return bad


def _stop(rows: slice | None) -> int | None:
    """Rows that must be indexed for a slice; None is all, since a negative bound counts from the end."""
    if rows is None or rows.stop is None or rows.stop < 0 or (rows.start or 0) < 0:
        return None
    return int(rows.stop)


def eval_sources(
    evaluation: EvalSettings, data: DataSettings, tokenizer: Tokenizer | None = None, max_prompt_len: int | None = None
) -> list[tuple[str, PromptSource]]:
    """The named evaluation sets of --eval-prompt-data, in file order. Raises InvalidValue where a pair is broken."""
    given = evaluation.eval_prompt_data
    if len(given) % 2:
        raise InvalidValue(f"--eval-prompt-data takes pairs `name path`, and {len(given)} words are no pairs: {given}")
    names, paths = given[::2], given[1::2]
    if len(set(names)) < len(names):
        raise InvalidValue(f"--eval-prompt-data names a set twice: {', '.join(names)}")
    return [
        (name, PromptSource(eval_data(evaluation, data, path), tokenizer=tokenizer, max_prompt_len=max_prompt_len))
        for name, path in zip(names, paths, strict=True)
    ]


def eval_data(evaluation: EvalSettings, data: DataSettings, path: str) -> DataSettings:
    """The settings to read one evaluation set."""
    return msgspec.structs.replace(
        data,
        prompt_data=path,
        input_key=evaluation.eval_input_key or data.input_key,
        label_key=evaluation.eval_label_key or data.label_key,
        rollout_shuffle=False,
    )


def check_first_rows(settings: DataSettings) -> None:
    """Raises DataError where none of the first --max-bad-lines + 1 rows of `settings.prompt_data` is usable.

    A run on such a file would fail. Tokens and chat templates are not checked.
    """
    assert settings.prompt_data is not None
    url, rows = parse_path(settings.prompt_data)
    file = DataFile(url)
    bad: list[BadRow] = []
    for row in islice(_rows(file, rows or slice(None)), settings.max_bad_lines + 1):
        made = row if isinstance(row, BadRow) else _problem(row, settings, file.url)
        if made is None:
            return
        bad.append(made)
    if not bad:
        raise DataError(f"{settings.prompt_data} has no rows")
    raise DataError(f"none of the first {len(bad)} rows of {settings.prompt_data} can be used: {bad[0]}")


def _rows(file: DataFile, asked: slice) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """(1-based line, fields) of each row of the slice, with the lines between them that are no JSON objects."""
    counts_from_the_end = any(bound is not None and bound < 0 for bound in (asked.start, asked.stop))
    if is_parquet(file) or counts_from_the_end:
        reader = open_reader(file)
        yield from ((reader.line(row), reader.read([row])[0]) for row in range(len(reader))[asked])
        return
    row = 0
    for number, _, line in lines_of(file):
        if asked.stop is not None and row >= asked.stop:
            return
        if not line.strip():
            continue
        if problem := bad_line(line):
            yield BadRow(file=file.url, line=number + 1, reason=problem[0], message=problem[1])
            continue
        if row >= (asked.start or 0):
            yield number + 1, msgspec.json.decode(line, type=dict[str, Any])
        row += 1


class _AnyText:
    """A stand-in for a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0]

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any:
        return "chat"


def _problem(row: tuple[int, dict[str, Any]], settings: DataSettings, url: str) -> BadRow | None:
    line, fields = row
    made = make_prompt(fields, settings, _AnyText())
    return BadRow(file=url, line=line, reason=made.reason, message=made.message) if isinstance(made, Problem) else None
