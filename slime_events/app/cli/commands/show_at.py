"""`show RUN --at POS`: the whole system at one position of its log; with `--diff`, the changes between two."""

import sys
from typing import Any

from slime_events.analysis.timetravel.read_moment import open_timeline, read_difference, read_moment
from slime_events.app.cli.render.moment_text import difference_text, moment_text
from slime_events.app.launch.run_status import read_status
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.json_values import plain


async def moment_facts(
    opened: OpenedRun, at: str, step: int = 0, diff: str | None = None
) -> tuple[dict[str, Any], str]:
    """Return the run at position `at` plus `step` events, or its changes up to `diff`, as JSON values and as text.

    Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position.
    """
    timeline = await open_timeline(opened, _announce_index)
    if diff is not None:
        difference = await read_difference(opened, timeline, at, diff, read_status, step=step)
        return plain(difference), difference_text(difference)
    view, last = await read_moment(opened, timeline, at, read_status, step=step)
    return plain(view), moment_text(view, last)


def _announce_index(events: int) -> None:
    sys.stderr.write(f"reading {events:,} events once to build an index; later calls are fast\n")
