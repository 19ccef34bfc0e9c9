"""`BufferFilter`: slime's `--buffer-filter-path`, over the groups of an archive.

slime's default (`pop_first`) takes the first groups of the buffer. Here the buffer has the archived prompts that may be
drawn now, in the order of their first submission. Each is a list of `Sample`s: the newest graded group of the prompt,
as its grader left it. Its responses are not reused.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from schemas.errors import PlugPointError
from schemas.text import raised_text
from slime_events.loop.prompts.archived_prompts import ArchivedPrompt
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.loader import load_function, name_of, place_of
from slime_events.plugins.sample import Sample

Groups = list[list[Sample]]


def pop_first(args: object, rollout_id: int | None, buffer: Groups, num_samples: int) -> Groups:
    """Remove and return the first groups of the buffer."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


class BufferFilter:
    """A user's function `(args, rollout_id, buffer, num_samples) -> groups`, called for a group at a time.

    Raises PlugPointMissing, PlugPointError.
    """

    def __init__(self, path: str, view: ArgsView) -> None:
        self._function, self._view = load_function(path), view

    def choose(self, rows: Sequence[tuple[int, ArchivedPrompt]]) -> int | None:
        """Return the row to draw next; None if the filter returns none. Raises PlugPointError for a broken filter."""
        name = name_of(self._function)
        try:
            returned = self._function(for_one_call(self._view), None, [_group(prompt) for _, prompt in rows], 1)
            chosen = list(islice(returned, 2))  # more than one is an error, and a generator may be endless
        except BaseException as error:  # a user's code may raise anything
            raise PlugPointError(f"the buffer filter {name} raised {raised_text(error)}{place_of(error)}") from error
        if not chosen:
            return None
        rows_of_buffer = {row for row, _ in rows}
        first = _first(_first(chosen[0]))  # a rollout with several samples is a nested list
        if len(chosen) > 1 or not isinstance(first, Sample) or first.group_index not in rows_of_buffer:
            raise PlugPointError(f"the buffer filter {name} must return a list with a single group of its buffer")
        return first.group_index


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value


def _group(archived: ArchivedPrompt) -> list[Any]:
    """Return a copy: a filter removes groups from the buffer, and may remove samples from a group."""
    return [list(member) if isinstance(member, list) else member for member in archived.members]
