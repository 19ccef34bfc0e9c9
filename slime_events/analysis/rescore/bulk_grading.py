"""Built-in graders over many samples at once, in a process of their own: one message for hundreds of samples.

The pool that a run grades with (`slime_events/plugins/rewards/pool.py`) answers sample by sample, as a live group needs
it. Here nothing waits for a single sample, and a rule takes less time than a message about it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import SlimeEventsError
from schemas.rewards import RewardFailureKind
from schemas.text import raised_text
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import limits, messages
from slime_events.plugins.rewards.dispatch import built_in
from slime_events.plugins.rewards.outcome import RewardFailure, failure, value_of
from slime_events.plugins.sample import Sample

_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from slime_events.analysis.rescore.bulk_grading import main; main(int(sys.argv[2]), *map(float, sys.argv[3:]))"
)
_ROOT = str(Path(__file__).resolve().parents[3])
START_S = 60.0
"""For a process to start, beside the time limit of its samples."""


class Task(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a rule reads of one sample. grader: `--rm-type` or the sample's own; key: --reward-key. numbers: its
    group_index, index and rollout_id.
    """

    grader: str
    key: str | None
    numbers: tuple[int | None, int | None, int | None]
    prompt: str
    response: str
    label: Any
    metadata: Any


Grade = float | RewardFailure
"""Of one sample: the reward, or why there is none."""

_tasks = msgspec.msgpack.Decoder(list[Task])
_grades = msgspec.msgpack.Decoder(list[Grade])


class RuleProcess:
    """One process, with the limits of `settings`. Not for use by two threads at once."""

    def __init__(self, settings: RewardSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            given = (theirs.fileno(), settings.rm_timeout, settings.rm_memory_gb)
            command = [sys.executable, "-P", "-c", _BOOT, _ROOT, *map(str, given)]
            environment = limits.environment(os.environ, settings.rm_env)
            self._child = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        self._socket, self._limit_s = ours, settings.rm_timeout

    def grade(self, tasks: Sequence[Task]) -> list[Grade] | None:
        """One grade per task; None where the process was lost or had to be ended: start another.

        A sample's time limit is kept in the process itself. Where that cannot be (in C code, say), the process is ended
        after the time limits of all its samples.
        """
        self._socket.settimeout(START_S + self._limit_s * len(tasks))
        try:
            self._socket.sendall(messages.frame(messages.encode(tasks)))
            answer = messages.receive_frame(self._socket)
        except OSError:  # a timeout is one, too
            answer = None
        if answer is None:
            self.end()
            return None
        return _grades.decode(answer)

    def end(self) -> None:
        """End it at once; it is reaped when this returns."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._child.wait()


class _Late(BaseException):
    """A sample's time is over. No `Exception`, which a grader might catch."""


def grade_tasks(tasks: Sequence[Task], limit_s: float) -> list[Grade]:
    """Grade here and now, in the main thread; what a rule raises is data."""
    return [_grade(task, limit_s) for task in tasks]


def _grade(task: Task, limit_s: float) -> Grade:
    sample = Sample(*task.numbers, prompt=task.prompt, response=task.response, label=task.label, metadata=task.metadata)
    try:
        grader = built_in(task.grader, task.key)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            returned = grader.function(None, sample)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _Late:
        return failure(RewardFailureKind.TIMEOUT, f"grading took longer than {limit_s:g} s")
    except MemoryError as error:
        error.__traceback__ = None  # frees what the rule's frames hold
        return failure(RewardFailureKind.OUT_OF_MEMORY, f"the grader {task.grader} ran out of memory")
    except SlimeEventsError as error:
        return failure(RewardFailureKind.INVALID, str(error))
    except Exception as error:
        return failure(RewardFailureKind.RAISED, f"the grader {task.grader} raised {raised_text(error)}")
    value = value_of(returned, grader.reward_key)
    return value if isinstance(value, RewardFailure) else value.value


def _late(number: int, frame: Any) -> None:
    raise _Late


def main(connection: int, limit_s: float, memory_gb: float) -> None:
    """Grade what comes until the other end is closed."""
    limits.limit(memory_gb)
    signal.signal(signal.SIGALRM, _late)
    with socket.socket(fileno=connection) as ours:
        while (payload := messages.receive_frame(ours)) is not None:
            ours.sendall(messages.frame(messages.encode(grade_tasks(_tasks.decode(payload), limit_s))))
