"""`check_first_rows`: whether a data file begins with something that can be used, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from schemas.errors import DataError
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.files import DataFile
from slime_events.loop.prompts.path import parse_path
from slime_events.loop.prompts.prompt import make_prompt
from slime_events.loop.prompts.reader import bad_line, is_parquet, lines_of, open_reader
from slime_events.loop.prompts.row import BadRow, Problem


def check_first_rows(settings: DataSettings) -> None:
    """Raises DataError where `settings.prompt_data` has no usable row among the first that the run may pass over.

    Those are --max-bad-lines: a run on such a file comes to nothing. Tokens and chat templates are not looked at.
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
    """(1-based line, fields) of each row asked for, with the lines met on the way that are no JSON objects."""
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
    """In the place of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0]

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any:
        return "chat"


def _problem(row: tuple[int, dict[str, Any]], settings: DataSettings, url: str) -> BadRow | None:
    line, fields = row
    made = make_prompt(fields, settings, _AnyText())
    return BadRow(file=url, line=line, reason=made.reason, message=made.message) if isinstance(made, Problem) else None
