"""The program of a `RuleProcess`: built-in graders over many samples, one message for hundreds of them.

It imports no code of the parent's side: each process waits for its imports.
"""

import signal
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import SlimeEventsError
from schemas.rewards import RewardFailureKind
from schemas.text import raised_text
from slime_events.core.child.frames import receive_frame, send_frame
from slime_events.core.child.inside import connect
from slime_events.core.child.limits import limit
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.outcome import RewardFailure, failure, value_of
from slime_events.plugins.rewards.registry import built_in
from slime_events.plugins.sample import Sample


class Task(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Inputs of a rule for one sample."""

    grader: Annotated[str, doc("`--rm-type`, or the sample's own")]
    key: Annotated[str | None, doc("--reward-key")]
    numbers: Annotated[tuple[int | None, int | None, int | None], doc("group_index, index and rollout_id")]
    prompt: Annotated[str, doc("prompt as slime's functions see it")]
    response: Annotated[str, doc("text of the response")]
    label: Annotated[Any, doc("right answer")]
    metadata: Annotated[Any, doc("metadata of prompt and sample")]


Grade = float | RewardFailure
"""Result for one sample: the reward, or why there is none."""

_tasks = msgspec.msgpack.Decoder(list[Task])


class _TimeLimit(BaseException):
    """The time limit of a sample has passed. It is not an `Exception`, which a grader might catch."""


def grade_tasks(tasks: Sequence[Task], limit_s: float) -> list[Grade]:
    """Grade in this thread, which must be the main thread. An exception of a rule becomes a failure."""
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
    except _TimeLimit:
        return failure(RewardFailureKind.TIMEOUT, f"grading took longer than {limit_s:g} s")
    except MemoryError as error:
        error.__traceback__ = None  # frees what the rule's frames hold
        return failure(RewardFailureKind.OUT_OF_MEMORY, f"the grader {task.grader} ran out of memory")
    except SlimeEventsError as error:
        return failure(RewardFailureKind.INVALID, str(error))
    except Exception as error:  # a rule may raise anything
        return failure(RewardFailureKind.RAISED, f"the grader {task.grader} raised {raised_text(error)}")
    value = value_of(returned, grader.reward_key)
    return value if isinstance(value, RewardFailure) else value.value


def _raise_time_limit(number: int, frame: object) -> None:
    raise _TimeLimit


def main(descriptor: str, parent: str, limit_s: str, memory_gb: str) -> None:
    """Grade the tasks that arrive until the other end is closed."""
    with connect(descriptor, parent) as connection:
        limit(float(memory_gb))
        signal.signal(signal.SIGALRM, _raise_time_limit)
        while (payload := receive_frame(connection)) is not None:
            send_frame(connection, messages.encode(grade_tasks(_tasks.decode(payload), float(limit_s))))
