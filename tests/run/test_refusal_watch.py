"""Refused prompts: counted by reason on the terminal, at the start and at the end."""

from __future__ import annotations

from pathlib import Path

from schemas.arrays import EMPTY_TOKENS
from schemas.event import Event
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.app.launch.refusal_watch import RefusalWatch, RefusedPrompts
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.run import RunState
from tests import made
from tests.run.test_supervisor import watch, worker

__all__ = ["worker"]
FOLDER = RunFolder("slime-runs", "demo")


def refused(line: int, reason: str = "wrong_type: q[0].content: it is null", epoch: int = 0) -> PromptRejected:
    return PromptRejected(source=Source(path="a.jsonl", line=line, epoch=epoch, offset=line), reason=reason)


def submitted(line: int) -> PromptSubmitted:
    return made.submitted(
        f"train-0-{line:06d}", text="x", tokens=EMPTY_TOKENS, source=Source(path="a.jsonl", line=line)
    )


REQUESTED = made.accepted()
"""Any event but of a draw."""


def test_the_refused_ones_of_a_draw_are_one_sentence() -> None:
    watching = RefusalWatch(FOLDER, RunState(run="demo"))
    events: list[Event] = [
        *(refused(line) for line in range(3)),
        *(submitted(9 + line) for line in range(5)),
        refused(7, "not_json: 'q' cannot be read: not UTF-8"),
    ]
    assert [watching.apply(event) for event in events] == [None] * len(events)
    assert watching.apply(REQUESTED) == (
        "4 of 9 prompts refused: 3 x q[0].content: it is null, 1 x 'q' cannot be read: not UTF-8 "
        "(list them with `slime-events tail demo --type prompt.rejected --no-follow`)"
    )
    assert watching.apply(REQUESTED) is None
    assert watching.apply(refused(70)) is None
    assert watching.apply(REQUESTED) is None  # the next sentence is at ten
    for line in range(20, 30):
        watching.apply(refused(line))
    assert "15 of 20" in str(watching.apply(REQUESTED))


def test_a_row_that_comes_again_in_each_epoch_is_one_row() -> None:
    text = RefusedPrompts(refused(line, epoch=epoch) for epoch in range(5) for line in range(2)).text(10, FOLDER)
    assert text.startswith("10 of 20 prompts refused, from 2 rows: 2 x q[0].content")


async def test_a_run_says_at_its_end_what_it_refused(tmp_path: Path, worker: Participant) -> None:
    notes = list[str]()
    end = made.finished(events=3)
    await watch(worker, tmp_path, refused(1), refused(2, "too_long: the prompt has 99 tokens"), end, note=notes.append)
    assert notes[-1].startswith("2 of 2 prompts refused: 1 x q[0].content: it is null, 1 x the prompt has 99 tokens")
