"""Makes the golden log of the current schemas: `python -m tests.golden.make v2`.

A golden log, once released, is never made again: it shows from then on that what this version wrote can be read. So
this refuses to overwrite, and a release that raises a `SCHEMA` or adds an event brings a new file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from schemas.archives import ArchiveSealed
from schemas.arrays import Array, BlobRef, pack, pack_log_probs, pack_tokens
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.codec import encode
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.envelope import Envelope, enclose
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted, PromptWanted, Source
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from schemas.rollouts import (
    FailureKind,
    Maker,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutReturned,
    RolloutSuspended,
    Sampling,
    StopReason,
    SuspendReason,
    Timings,
    WeightSpan,
)
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepClaimed, StepCommitted
from schemas.trainers import Fidelity, TrainerRestored, WeightsDistance
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from schemas.workers import WorkerJoined, WorkerLost
from tests.golden.log_file import FOLDER, rendered_file, write_records
from tests.golden.make_outside import from_outside
from tests.golden.make_placement import placement
from tests.golden.make_session import session
from tests.golden.make_transfer import transfer

RUN = "golden"
DIGEST = "ab" * 32
SAMPLING = Sampling(max_new_tokens=8, temperature=0.8, top_p=0.95, top_k=40, stop=("\n",), stop_token_ids=(2,))


def a_run() -> Iterator[Event]:
    """Two groups of two samples: one is trained on, one is not; then the ends a run can have."""
    yield RunStarted(settings={"rollout": {"batch": 1}}, code_version="0.1.0", environment={"python": "3.11"})
    yield placement()
    yield DeviceWanted(worker="trainer-1")
    yield DeviceTaken(worker="trainer-1", side=Side.TRAINER, number=0, pid=6, node="n", seconds=0.1)
    yield WeightsPublished(version=0, parent=None, url="weights/0", digest=DIGEST, bytes=1000)
    yield DeviceReleased(worker="trainer-1", side=Side.TRAINER, number=0, seconds=0.2)
    yield DeviceTaken(worker="engine-1", side=Side.ENGINES, number=0, pid=7, node="n")
    yield WorkerJoined(
        worker="engine-1", role="engine", pid=7, node="n", facts={"device": "cpu"}, seconds={"load": 1.5}
    )
    yield from transfer()
    yield WeightsActivated(version=0, engine="engine-1", digest=DIGEST, seconds=0.5, lag=0.7, resumed=1)
    yield PromptRejected(source=Source(path="file:///p.jsonl", row=1, offset=1, line=2), reason="no field 'input'")
    yield from _trained_group()
    yield from _rejected_group()
    yield from _rollout_in_turns()
    yield from session(SAMPLING, DIGEST)
    yield from from_outside()
    yield from _step()
    yield PromptWanted(total=2)
    yield RolloutReturned(
        step=1,
        function="mine:rollout",
        digest=DIGEST,
        groups=("brought-000000",),
        outcome=pack([40, -75], "int8"),
        dropped=("train-0-3",),
        metrics={"rollout/agents": 7.0},
        seconds=2.5,
    )
    yield from _requests_of_other_makers()
    yield WorkerLost(worker="engine-1", role="engine", reason="its process ended")
    yield RunFailed(role="conductor", reason="no engine is left", waited_for="an engine", at_events=30)
    yield RunResumed(incarnation=1, code_version="0.1.1", environment={"python": "3.11"})
    yield RunFinished(reason=FinishReason.ALL_STEPS, steps=1, events=32, state_digest=DIGEST)


def _requests(group: str, prompt: Array, purpose: Purpose) -> Iterator[Event]:
    for index in range(2):
        yield RolloutRequested(
            sample=f"{group}-s{index}",
            group=group,
            index=index,
            prompt=prompt,
            sampling=SAMPLING,
            seed=2**63 - 1 - index,
            purpose=purpose,
        )


def _requests_of_other_makers() -> Iterator[Event]:
    """A rollout of a function, one that another run recorded, and one that a producer offered."""
    others = (
        ("brought-000000", Maker.FUNCTION, {"function": "mine:rollout"}),
        ("again-000000", Maker.RECORDED, {"recalls": "train-0-000003-s0"}),
        ("inbox-0123456789abcdef", Maker.OUTSIDE, {"recalls": "inbox-0123456789abcdef-s0"}),
    )
    prompt = pack_tokens([1, 5])
    for group, maker, more in others:
        yield RolloutRequested(
            sample=f"{group}-s0", group=group, index=0, prompt=prompt, sampling=SAMPLING, seed=1, maker=maker, **more
        )


def _trained_group() -> Iterator[Event]:
    group, prompt = "train-0-0", pack_tokens([1, 5, 6])
    yield PromptSubmitted(
        group=group,
        text="2+3=",
        tokens=prompt,
        source=Source(path="file:///p.jsonl", row=0, epoch=0, offset=0),
        messages=[{"role": "user", "content": "2+3="}],
        label="5",
        metadata={"level": 1, "größe": None},
        tools=[{"type": "function", "function": {"name": "add"}}],
    )
    yield from _requests(group, prompt, Purpose.TRAIN)
    for index in range(2):
        yield from _graded_rollout(group, index)
    yield GroupAccepted(
        group=group,
        samples=(f"{group}-s0", f"{group}-s1"),
        rewards=(0.0, 1.0),
        filter="check_reward_nonzero_std",
        filter_digest=DIGEST,
        reason=None,
        figures={"mean": 0.5, "std": 0.5},
    )


def _graded_rollout(group: str, index: int) -> Iterator[Event]:
    """One that rests on its way, and is finished with the next weights."""
    sample = f"{group}-s{index}"
    yield RolloutProgressed(
        sample=sample,
        attempt=0,
        start=0,
        tokens=pack_tokens([7, 8]),
        log_probs=pack_log_probs([-0.25, -1.5]),
        spans=(WeightSpan(0, 2, 0),),
        engine="engine-1",
    )
    yield RolloutSuspended(sample=sample, attempt=0, length=2, reason=SuspendReason.STEP_BOUNDARY, engine="engine-1")
    yield RolloutCompleted(
        sample=sample,
        group=group,
        attempt=0,
        start=2,
        length=3,
        prompt_length=3,
        stop=StopReason.STOP,
        text="5 ✓",
        spans=(WeightSpan(0, 2, 0), WeightSpan(2, 3, 1)),
        digest=DIGEST,
        engine="engine-1",
        tokens=pack_tokens([2]),
        log_probs=pack_log_probs([-0.125]),
        loss_mask=pack([1, 1, 0], "int8"),
        timings=Timings(queued=0.1, generating=0.2, updating=0.3),
    )
    yield RewardAssigned(
        sample=sample,
        group=group,
        value=float(index),
        grader="math",
        grader_digest=DIGEST,
        detail={"pred": "5"},
        seconds=0.01,
    )


def _rejected_group() -> Iterator[Event]:
    group = "inbox-1"
    prompt = Array(dtype="int32", n=100_000, blob=BlobRef(sha256=DIGEST, size=400_000))
    yield PromptSubmitted(
        group=group, text="long", tokens=prompt, source=Source(path="inbox", key="k-1"), dataset="inbox"
    )
    yield from _requests(group, prompt, Purpose.TRAIN)
    yield RolloutFailed(
        sample=f"{group}-s0",
        group=group,
        attempt=0,
        kind=FailureKind.TOO_LONG,
        message="the prompt has 100000 tokens, the context 4096",
        engine="engine-1",
    )
    yield RewardFailed(
        sample=f"{group}-s1",
        group=group,
        kind=RewardFailureKind.TIMEOUT,
        message="no answer in 5 s",
        grader="math",
        grader_digest=DIGEST,
        seconds=5.0,
    )
    yield GroupRejected(group=group, cause=RejectionCause.ROLLOUT_FAILED, reason="one of two failed")


def _rollout_in_turns() -> Iterator[Event]:
    """A generation in two parts, a tool, and the two resulting samples."""
    sample, engine = "train-0-2-s0", "engine-1"
    yield TurnBegun(sample=sample, index=0, role=TurnRole.ASSISTANT, asked=DIGEST, engine=engine)
    yield RolloutProgressed(
        sample=sample,
        attempt=0,
        start=0,
        tokens=pack_tokens([7]),
        log_probs=pack_log_probs([-0.5]),
        spans=(WeightSpan(0, 1, 0),),
        engine=engine,
        turn=0,
    )
    yield TurnRecorded(
        sample=sample,
        index=0,
        role=TurnRole.ASSISTANT,
        asked=DIGEST,
        engine=engine,
        observed=pack_tokens([1, 5]),
        start=1,
        length=2,
        tokens=pack_tokens([8]),
        log_probs=pack_log_probs([-1.0]),
        spans=(WeightSpan(0, 2, 0),),
        stop=StopReason.STOP,
        text="add(2, 3)",
        seconds=0.5,
    )
    call = ToolCall("add", {"a": 2, "b": 3}, may_repeat=True)
    yield TurnBegun(
        sample=sample, index=1, role=TurnRole.TOOL, asked=DIGEST, engine=engine, call=call, overlapping=True
    )
    yield TurnRecorded(
        sample=sample,
        index=1,
        role=TurnRole.TOOL,
        asked=DIGEST,
        engine=engine,
        call=call,
        result={"sum": 5},
        overlapping=True,
        seconds=0.01,
    )
    for name, origin in ((f"{sample}-1", sample), (sample, "")):
        yield _rollout_of_turns(name, origin)


def _rollout_of_turns(name: str, origin: str) -> RolloutCompleted:
    return RolloutCompleted(
        sample=name,
        group="train-0-2",
        attempt=0,
        start=0,
        length=3,
        prompt_length=2,
        stop=StopReason.STOP,
        text="add(2, 3)5",
        spans=(WeightSpan(0, 2, 0),),
        digest=DIGEST,
        engine="engine-1",
        tokens=pack_tokens([7, 8, 9]),
        log_probs=pack_log_probs([-0.5, -1.0, 0.0]),
        loss_mask=pack([1, 1, 0], "int8"),
        credit=pack([0.5, 1.0, 0.0], "float32"),
        rollout=origin,
        prompt=pack_tokens([1, 5]),
        metadata={"calls": 1},
    )


def _commands() -> Iterator[Event]:
    yield CommandGiven(
        command="tinker-0123456789abcdef-m0-000001",
        model="tinker-0123456789abcdef-m0",
        number=1,
        kind=CommandKind.FORWARD_BACKWARD,
        arguments={"loss_fn": "cross_entropy", "config": {}},
        datums=pack([1, 2, 3], "int8"),
        samples=("call-0-0123456789abcdef-s0",),
        source="team",
    )
    yield CommandDone(
        command="tinker-0123456789abcdef-m0-000001",
        version=0,
        log_probs=pack_log_probs([-0.5]),
        metrics={"loss:sum": 0.5},
        seconds=0.25,
    )


def _step() -> Iterator[Event]:
    samples = ("train-0-0-s0", "train-0-0-s1")
    yield BatchSealed(
        step=0,
        groups=("train-0-0",),
        samples=samples,
        rewards=(-1.0, 1.0),
        raw_rewards=(0.0, 1.0),
        digest=DIGEST,
        oldest_version=0,
    )
    yield from _commands()
    yield StepClaimed(step=0, trainer="trainer-1")
    yield StepCommitted(
        step=0,
        batch_digest=DIGEST,
        parent_version=0,
        version=1,
        weights_digest=DIGEST,
        optimizer_digest=DIGEST,
        samples=2,
        tokens=12,
        metrics={"loss": 0.5},
        seconds={"train": 0.4},
        stored=False,
    )
    yield WeightsPublished(version=1, parent=0, url="weights/1", digest=DIGEST, bytes=1000)
    yield WeightsStored(version=1, digest=DIGEST, url="weights/1", bytes=1000, seconds=0.2)
    yield CheckpointSaved(version=1, url="checkpoints/1", weights_digest=DIGEST, optimizer_digest=DIGEST, seconds=0.1)
    yield TrainerRestored(
        version=1,
        trainer="trainer-2",
        checkpoint=0,
        optimizer=Fidelity.APPROXIMATE,
        retrained=1,
        differing=1,
        distance=WeightsDistance(max_abs=1e-6, relative_l2=1e-8),
        optimizer_digest="cd" * 32,
        seconds=0.5,
    )
    yield EvalCompleted(
        dataset="held-out",
        version=1,
        mean=0.75,
        samples=4,
        failed=1,
        mean_length=3.5,
        oldest_version=0,
        newest_version=1,
    )
    yield ArchiveSealed(segment=0, first=1, last=20, sha256=DIGEST, bytes=4096, url="archive/0.seg")


def envelopes() -> Iterator[Envelope]:
    """The run as it is written, each event caused by the one before."""
    cause: str | None = None
    for number, event in enumerate(a_run()):
        trace = f"00-{number + 1:032x}-{number + 1:016x}-01" if number % 2 else None
        envelope = enclose(
            RUN, event, at=1_700_000_000_000_000_000 + number, producer="make", cause=cause, traceparent=trace
        )
        cause = envelope.id
        yield envelope


def main(name: str) -> None:
    """Write `<name>.slimelog` and its rendering `<name>.json`."""
    path = FOLDER / f"{name}.slimelog"
    write_records(path, (encode(envelope) for envelope in envelopes()))
    with path.with_suffix(".json").open("x") as file:
        json.dump(rendered_file(path), file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
