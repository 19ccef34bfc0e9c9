"""`Pace`: pauses between two works for a run that is on, which may need the processors."""

import time
from collections.abc import Callable

REST = 19.0
"""Pause after work, as a multiple of its time: at most a twentieth of the time."""
LONGEST_S = 10.0
"""Longest pause between two changes: the rows that need no tables are not further behind."""
LONGEST_OF_TABLES_S = 60.0
"""Longest pause between two computations of tables or alarms, which take longer the longer the run is."""
SHORTEST_S = 1.0


def rest_s(worked_s: float, longest_s: float) -> float:
    """Return the seconds to rest after that many seconds of work."""
    return min(longest_s, worked_s * REST)


class Pace:
    """Pauses between two changes that are sent to pages: after each they ask for their tables again.

    cpu_s: gives the CPU seconds of this process, with those of all requests.
    """

    def __init__(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._cpu_s, self._before_s = cpu_s, cpu_s()

    def pause_s(self) -> float:
        """Return the seconds to wait, by the CPU time since the last call."""
        now_s = self._cpu_s()
        worked_s, self._before_s = now_s - self._before_s, now_s
        return max(SHORTEST_S, rest_s(worked_s, LONGEST_S))
