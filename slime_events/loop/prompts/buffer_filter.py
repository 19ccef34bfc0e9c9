"""`BufferFilter`: slime's `--buffer-filter-path`, over the groups of an archive.

slime's default (`pop_first`) takes the first groups of the buffer. Here the buffer holds the archived prompts that may
be drawn now, by first submission. Each is a list of `Sample`s, the newest graded group of the prompt as its grader left
it; its responses are not reused.
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


def pop_first(args: Any, rollout_id: int | None, buffer: Groups, num_samples: int) -> Groups:
    """Remove and return the first groups of the buffer."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


class BufferFilter:
    """A user's `(args, rollout_id, buffer, num_samples) -> groups`, asked for one group at a time.

    Raises PlugPointMissing, PlugPointError.
    """

    def __init__(self, path: str, view: ArgsView) -> None:
        self._function, self._view = load_function(path), view

    def choose(self, rows: Sequence[tuple[int, ArchivedPrompt]]) -> int | None:
        """The row to draw next; None where the filter returns none. Raises PlugPointError where it is broken."""
        name = name_of(self._function)
        try:
            returned = self._function(for_one_call(self._view), None, [_group(prompt) for _, prompt in rows], 1)
            chosen = list(islice(returned, 2))  # one is taken: more are an error, and may have no end
        except BaseException as error:
            raise PlugPointError(f"the buffer filter {name} raised {raised_text(error)}{place_of(error)}") from error
        if not chosen:
            return None
        known = {row for row, _ in rows}
        first = _first(_first(chosen[0]))  # a rollout that became several samples is a list in the list
        if len(chosen) > 1 or not isinstance(first, Sample) or first.group_index not in known:
            raise PlugPointError(
                f"the buffer filter {name} has to return a list with one group of the buffer it was given"
            )
        return first.group_index


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _group(archived: ArchivedPrompt) -> list[Any]:
    """A list of its own: a filter takes groups out of the buffer, and may take samples out of a group."""
    return [list(one) if isinstance(one, list) else one for one in archived.members]
