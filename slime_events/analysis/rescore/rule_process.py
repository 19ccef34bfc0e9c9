"""`RuleProcess`: built-in graders over many samples at once, in a separate process.

The pool of a run (`slime_events/plugins/rewards/pool.py`) answers sample by sample, as a live group needs it. Here no
one waits for a single sample, and a rule takes less time than a message about it.
"""

import os
from collections.abc import Sequence

import msgspec

from slime_events.analysis.rescore import bulk_grading
from slime_events.analysis.rescore.bulk_grading import Grade, Task
from slime_events.core.child.frames import receive_frame, send_frame
from slime_events.core.child.process import Child
from slime_events.core.config.reward import RewardSettings
from slime_events.core.run.own_python import user_command
from slime_events.plugins.rewards import messages
from slime_events.plugins.user_environment import grader_environment

START_S = 60.0
"""Limit on the start of a process, added to the time limits of its samples [s]."""
_grades = msgspec.msgpack.Decoder(list[Grade])


class RuleProcess:
    """A process with the limits of `settings`. It must not be used by two threads at once."""

    def __init__(self, settings: RewardSettings) -> None:
        self._limit_s = settings.rm_timeout
        self._child = Child(
            user_command(bulk_grading.__name__),
            [str(settings.rm_timeout), str(settings.rm_memory_gb)],
            environment=grader_environment(os.environ, settings.rm_env),
        )

    def grade(self, tasks: Sequence[Task]) -> list[Grade] | None:
        """Return a grade per task; None if the process was lost or had to be killed: then start another.

        The process itself enforces each sample's time limit. If it cannot (in C code, for example), the process is
        killed after the time limits of all its samples.
        """
        connection = self._child.connection
        connection.settimeout(START_S + self._limit_s * len(tasks))
        try:
            send_frame(connection, messages.encode(tasks))
            answer = receive_frame(connection)
        except OSError:  # includes timeouts
            answer = None
        if answer is None:
            self.end()
            return None
        return _grades.decode(answer)

    def end(self) -> None:
        """Kill the process and reap it."""
        self._child.close()
        self._child.end()
