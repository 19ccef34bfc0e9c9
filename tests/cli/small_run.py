"""A small finished run on the in-memory log: two steps of two groups of two samples, one rejected group, one eval."""

from __future__ import annotations

import hashlib

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.codec import encode
from schemas.envelope import enclose
from schemas.event import Event
from schemas.groups import RejectionCause
from schemas.prompts import PromptRejected, Source
from schemas.rollouts import (
    StopReason,
    Timings,
    WeightSpan,
)
from schemas.workers import WorkerJoined
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunState, state_digest
from slime_events.core.tokens.trajectory import content_digest
from storage.log import Append, Recorded
from storage.memory_log import MemoryLog
from tests import made

RUN = "small"
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
ENGINE = "engine-1"
GROUPS = ("train-0-000000", "train-0-000001", "train-0-000002", "inbox-aa", "train-0-000003")
REJECTED = GROUPS[2]
BATCHES = (GROUPS[:2], GROUPS[3:])


async def small_run() -> MemoryLog:
    """The log of a finished run."""
    return await write(finished(list(events())))


def finished(before: list[Event]) -> list[Event]:
    """The events, and the run.finished that a live run would say after them."""
    state = RunState(run=RUN)
    for record in recorded(before):
        apply(state, record)
    end = made.finished(steps=state.steps, events=state.events, state_digest=state_digest(state), fold=FOLD)
    return [*before, end]


def recorded(events_: list[Event]) -> list[Recorded]:
    """The events as a log would hold them."""
    return [
        Recorded(position, append.envelope.subject, append.envelope, encode(append.envelope))
        for position, append in enumerate(appends(events_), 1)
    ]


def appends(events_: list[Event]) -> list[Append]:
    """Each event a tenth of a second after the one before."""
    return [
        Append(enclose(RUN, event, at=START + number * SECOND // 10, producer="test-1"))
        for number, event in enumerate(events_)
    ]


async def write(events_: list[Event]) -> MemoryLog:
    """A log of these events."""
    log = MemoryLog(RUN)
    await log.append(appends(events_))
    return log


def events() -> list[Event]:
    """Everything up to the end of the run."""
    events_: list[Event] = [
        made.started({"rollout": {"num_rollout": 2}}, code_version="0.1.0", environment={"torch": "2"}),
        WorkerJoined(worker=ENGINE, role="engine", pid=1, seconds={"load": 1.5}),
        made.published(url="weights/0", bytes=1000),
        made.activated(engine=ENGINE, lag=0.2),
        PromptRejected(source=Source(path="train.jsonl", line=7, offset=7), reason="not_json: no JSON object"),
    ]
    for step, groups in enumerate(BATCHES):
        names = (*groups, REJECTED) if step == 0 else groups
        for group in names:
            events_ += _group(group, step, reject=group == REJECTED)
        events_ += _step(step, groups)
    events_.append(made.evaluated(2, dataset="digits", mean=0.75, samples=4, mean_length=3))
    return events_


def _group(group: str, version: int, *, reject: bool) -> list[Event]:
    inbox = group.startswith("inbox")
    source = (
        Source(path="inbox", key="k1") if inbox else Source(path="train.jsonl", line=1, row=0, offset=int(group[-1]))
    )
    events_: list[Event] = [
        made.submitted(
            group, text=f"What is {group}?", tokens=[1, 2, 3], source=source, label="42",
            messages=[{"role": "user", "content": f"What is {group}?"}], dataset="inbox" if inbox else "train",
        )
    ]  # fmt: skip
    for index in range(2):
        events_ += _sample(group, index, version)
    samples = (f"{group}-s0", f"{group}-s1")
    if reject:
        figures = {"mean": 0.0, "std": 0.0}
        cause, reason = RejectionCause.FILTER, "zero_std_0.0"
        events_.append(
            made.rejected(
                group, cause, reason=reason, samples=samples, rewards=(0.0, 0.0), filter="nonzero_std", figures=figures,
            )
        )  # fmt: skip
    else:
        events_.append(made.accepted(group, samples=samples, rewards=(0.0, 1.0), figures={"mean": 0.5}))
    return events_


def _sample(group: str, index: int, version: int) -> list[Event]:
    sample = f"{group}-s{index}"
    request = made.requested(sample, prompt=[1, 2, 3], seed=5)
    tokens, log_probs = pack_tokens([10, 11, 12]), pack_log_probs([-0.5, -0.25, -0.125])
    spans = (WeightSpan(0, 3, version),)
    events_: list[Event] = [request]
    done = made.completed(
        sample, tokens, length=3, prompt_length=3, text="is 42", spans=spans,
        digest=content_digest([10, 11, 12], [-0.5, -0.25, -0.125]), engine=ENGINE, log_probs=log_probs,
        timings=Timings(queued=0.25, generating=0.5),
    )  # fmt: skip
    if index == 1 and version == 1:  # this one came in two pieces, over two versions
        first = (WeightSpan(0, 2, 0),)
        events_.append(made.progressed(sample, [10, 11], log_probs=[-0.5, -0.25], spans=first, engine=ENGINE))
        done = made.completed(
            sample, [12], start=2, length=3, prompt_length=3, stop=StopReason.LENGTH, text="is 42",
            spans=(*first, WeightSpan(2, 3, 1)), digest=done.digest, engine=ENGINE, log_probs=[-0.125],
            timings=done.timings,
        )  # fmt: skip
    events_.append(done)
    value = 0.0 if group == REJECTED else float(index)
    grader = hashlib.sha256(b"exact").hexdigest()
    events_.append(
        made.assigned(sample, value=value, grader="exact", grader_digest=grader, detail={"found": "42"}, seconds=0.001)
    )
    return events_


def _step(step: int, groups: tuple[str, ...]) -> list[Event]:
    samples = tuple(f"{group}-s{index}" for group in groups for index in range(2))
    batch = made.sealed(
        step, groups=groups, samples=samples, rewards=(-1.0, 1.0) * 2, raw_rewards=(0.0, 1.0) * 2, digest=f"b{step}",
    )  # fmt: skip
    commit = made.committed(
        step, batch_digest=f"b{step}", samples=4, tokens=24, metrics={"loss": 0.5}, seconds={"train": 0.3},
    )  # fmt: skip
    weights = made.published(step + 1, parent=step, url=f"weights/{step + 1}", bytes=1000)
    active = made.activated(step + 1, engine=ENGINE, lag=0.2)
    return [batch, commit, weights, active]
