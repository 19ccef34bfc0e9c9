"""Requests, attempts and ends; tokens, turns and blobs; rewards; recorded rollouts of another run."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

from schemas.rewards import RewardFailureKind
from schemas.rollouts import RolloutFailed, RolloutSuspended, SuspendReason
from tests import made as events
from tests.audit.doctored import Doctored
from tests.audit.doctoring import Doctor, Doctoring, Select, again, also, both, change, drop, move, position, say, the

S, OTHER_S = "train-0-000004-s0", "train-0-000004-s9"
ASKED = the("rollout.requested", sample=S)
OF_SET = the("rollout.requested", group="eval-held-v5-000000")
CHUNKS = the("rollout.progressed", 0, sample=S), the("rollout.progressed", 1, sample=S)
DONE = the("rollout.completed", sample=S)
REWARD = the("reward.assigned", sample=S)
EVAL = "eval-held-v0-000000-s0"
EVALUATED = the("rollout.completed", sample=EVAL)
ACCEPTED = the("group.accepted", group="train-0-000004")
TURN = the("turn.recorded", sample="train-0-000000-s0", index=0)
TURN_CHUNK = the("rollout.progressed", sample="train-0-000000-s0", turn=0)
SOLVED = the("rollout.completed", sample="train-0-000000-s0-1")
JUDGED = the("rollout.completed", metadata={"role": "judge"})
FURTHER = the("rollout.completed", rollout=...)


def failed(message: str = "x", sample: str = S, attempt: int = 0) -> RolloutFailed:
    return events.failed(sample, group=S[:-3], attempt=attempt, message=message, engine="x")


def rests(length: int = 0, sample: str = S, attempt: int = 0) -> RolloutSuspended:
    return events.suspended(sample, length, attempt=attempt, reason=SuspendReason.SHUTDOWN, engine="x")


def attempts(end: Any, *numbers: int) -> Doctor:
    """A further sample of the group that is asked for, and once more after each end, with these attempts."""
    request = the("rollout.requested", sample=OTHER_S)

    def doctor(log: Doctored) -> list[Any]:
        again_ = again(ASKED, sample=OTHER_S)(log)
        for before, attempt in pairwise((0, *numbers)):
            ended = say(end(sample=OTHER_S, attempt=before), lambda _, last=again_[0]: last)(log)
            again_ = again(request, after=lambda _, last=ended[0]: last, attempt=attempt)(log)
        return again_

    return doctor


def no_reward(after: Select, sample: str = S) -> Doctor:
    kind = RewardFailureKind.NONE
    return say(events.reward_failed(sample, kind, message="x", grader=""), after)


row = partial(Doctoring, "rollouts")
ROLLOUTS = (
    row("rejected without a reason", change(the("group.rejected"), reason="")),
    row("of no prompt", again(ASKED, sample="x-s0", group="x"), names=("x",)),
    row(
        "asked for after the verdict",
        again(ASKED, after=ACCEPTED, sample=OTHER_S),
        names=(position(ACCEPTED),),
    ),
    row("asked for twice", again(ASKED), names=(0,)),
    row("made by newer weights than may make it", change(EVALUATED, spans=[(0, 24, 1)]), names=("v1", "v0")),
    row("made by older weights", change(EVALUATED, spans=[(0, 20, 0), (20, 24, -1)]), names=("v-1", "v0")),
    row("a chunk by newer weights", change(the("rollout.progressed", sample=EVAL), spans=[(0, 8, 1)]), names=("v1",)),
    row("asked for again while it waits", also(again(ASKED, attempt=1), *CHUNKS, DONE), names=("waiting",)),
    row(
        "asked for again while it runs",
        also(again(ASKED, after=CHUNKS[0], attempt=1), CHUNKS[1], DONE),
        names=("running",),
    ),
    row("asked for again when it was done", again(ASKED, after=DONE, attempt=1), names=("completed",)),
    row("asked for again when it had failed", attempts(failed, 1, 2), ()),
    row("asked for again when it rested", attempts(rests, 1, 2), ()),
    row("asked for twice, and it had failed between", attempts(failed, 0), names=(0,)),
    row("never made", again(ASKED, sample=OTHER_S), (), counts={"rejected with their group": 1, "completed": 58}),
    row("still to be made", again(OF_SET, sample="held-s9"), (), counts={"waiting for an engine": 1, "samples": 59}),
    row("of a sample that is nobody's", again(CHUNKS[0], sample="x-s0")),
    row("a chunk after the end", again(CHUNKS[1], after=DONE), names=(position(DONE),)),
    row("ended twice", again(DONE), names=(position(DONE),)),
    row("failed after the end", say(failed(), DONE), names=(position(DONE),)),
    row("of another attempt", change(CHUNKS[1], attempt=1), names=(1, 0)),
    row("continues after it failed", say(failed(), ASKED), (CHUNKS[0],), names=("failed",)),
    row("continues while it rests", say(rests(8), CHUNKS[0]), (CHUNKS[1],), names=("suspended",)),
    row("failed without a reason", also(say(failed(""), ASKED), CHUNKS[0])),
    row("a further sample of nobody's", again(FURTHER, rollout="x-s0"), log="turns"),
    row(
        "a further sample after its rollout",
        again(FURTHER, after=the("rollout.completed", -1, rollout=None), sample="train-0-000000-s0-7"),
        log="turns",
    ),
)


def blob(*, size: int = 32) -> dict[str, Any]:
    return {"data": b"", "blob": {"sha256": "0" * 64, "size": size}}


def mask(*masked: int, n: int = 24, size: int | None = None) -> dict[str, Any]:
    data = bytes(place not in masked for place in range(n if size is None else size))
    return {"dtype": "int8", "n": n, "data": data}


def experts(n: int, layers: int = 2, *, size: int | None = None) -> dict[str, Any]:
    """The field of experts, two in each layer."""
    ids = {"dtype": "uint8", "n": n, "data": bytes(n if size is None else size)}
    return {"ids": ids, "layers": layers, "each": 2}


def other_byte(data: bytes) -> bytes:
    return bytes([data[0] ^ 1, *data[1:]])


row = partial(Doctoring, "tokens")
TOKENS = (
    row("a chunk taken out", drop(CHUNKS[0]), (CHUNKS[1], DONE, DONE), (8, 0)),
    row("a chunk twice", also(again(CHUNKS[1]), DONE, DONE), names=(8, 16, "twice")),
    row("the last chunk taken out", drop(CHUNKS[1]), (DONE, DONE), (16, 8)),
    row("fewer log-probs", also(change(CHUNKS[0], log_probs={"n": 7, "data": lambda d: d[:-4]}), DONE), names=(8, 7)),
    row("bytes lost", also(change(CHUNKS[0], tokens={"data": lambda d: d[:-1]}), DONE), names=(8, 31)),
    row("a blob that is gone", change(CHUNKS[0], tokens=blob()), names=("0" * 64,)),
    row("another token", change(CHUNKS[0], tokens={"data": other_byte}), (DONE,)),
    row("another log-prob", change(CHUNKS[1], log_probs={"data": other_byte}), (DONE,)),
    row("another token at the end", change(DONE, tokens={"data": other_byte})),
    row("another digest", change(DONE, digest="0" * 64)),
    row("a token of no version", also(change(CHUNKS[0], spans=[[0, 7, 0]]), DONE), names=(0, 8)),
    row("a first token of no version", also(change(CHUNKS[0], spans=[[1, 8, 0]]), DONE)),
    row("a token between of no version", also(change(CHUNKS[0], spans=[[0, 3, 0], [4, 8, 0]]), DONE)),
    row("tokens of two versions", also(change(CHUNKS[0], spans=[[0, 5, 0], [4, 8, 0]]), DONE)),
    row("a version of more than the chunk", also(change(CHUNKS[0], spans=[[0, 9, 0]]), DONE)),
    row("no versions", also(change(CHUNKS[0], spans=[]), DONE)),
    row("rests with less", say(rests(7), CHUNKS[0]), names=(7, 8)),
    row("rests with what it has", say(rests(8), CHUNKS[0]), ()),
    row("rests with more than nothing", say(rests(1), ASKED), names=(1, 0)),
    row("rests with nothing", say(rests(0), ASKED), ()),
    row("another version than its chunks say", change(DONE, spans=[[0, 24, 99]]), names=(16,)),
    row("another version after its chunks", change(DONE, spans=[[0, 16, 0], [16, 24, 1]]), ()),
    row("another length", change(DONE, length=25, spans=[[0, 25, 0]]), names=(25, 24)),
    row("another prompt", change(DONE, prompt_length=3), names=(3, 2)),
    row("a prompt of its own", change(DONE, prompt_length=1, prompt={"dtype": "int32", "n": 1, "data": b"\0" * 4}), ()),
    row("a further sample of another prompt", change(SOLVED, prompt_length=3), names=(3, 8), log="turns"),
    row("another length than its own prompt's", change(JUDGED, prompt_length=3), log="turns"),
    row("a mask that is too short", change(DONE, loss_mask=mask(n=23)), names=(23, 24)),
    row("a mask", change(DONE, loss_mask=mask(3)), ()),
    row("a mask without its bytes", change(DONE, loss_mask=mask(size=23)), names=(24, 23)),
    row("experts", change(DONE, experts=experts(100)), ()),
    row("experts of half a token", change(DONE, experts=experts(98)), names=(98, 2, 2)),
    row("experts of a further token", change(DONE, experts=experts(108)), names=(108, 26)),
    row("experts of no layer", change(DONE, experts=experts(100, 0)), names=(100, 0)),
    row("experts without their bytes", change(DONE, experts=experts(100, size=99)), names=(100, 99)),
    row("trained tokens of no version", change(DONE, spans=[[0, 16, 0]]), names=(16, 24)),
    row("masked tokens of no version", change(DONE, spans=[[0, 16, 0]], loss_mask=mask(*range(16, 24))), ()),
    row("one of them not masked", change(DONE, spans=[[0, 16, 0]], loss_mask=mask(*range(17, 24))), names=(16, 24)),
    row("a turn's chunk taken out", drop(TURN_CHUNK), (TURN,), log="turns"),
    row("a turn of another length", change(TURN, length=7), names=(7, 6), log="turns"),
    row("a turn of other versions", change(TURN, spans=[[0, 6, 9]]), log="turns"),
)

row = partial(Doctoring, "rewards")
REWARDS = (
    row("no number", change(REWARD, value=math.nan), names=("nan",)),
    row("without end", change(REWARD, value=-math.inf), names=("-inf",)),
    row("before its rollout", move(REWARD, before=DONE)),
    row("of a sample that is nobody's", again(REWARD, sample="x-s0")),
    row("graded twice", again(REWARD, value=0.5), names=(position(REWARD),)),
    row("failed and assigned", no_reward(REWARD), names=(position(REWARD),), counts={"assigned": 58, "failed": 1}),
    row("failed before its rollout", also(no_reward(ASKED), REWARD)),
    row("of another group", change(REWARD, group="train-0-000009"), names=("train-0-000009", "train-0-000004")),
)

RECALLS = the("rollout.requested", recalls=...)
RECALLED = the("rollout.completed", origin=...)
AGAIN, OTHER = (the("prompt.submitted", number, recalled=...) for number in range(2))
ALL_ASKED = tuple(the("rollout.requested", number, group="again-000000") for number in range(3))
ALL_RECALLED = tuple(the("rollout.completed", number, group="again-000000") for number in range(3))
SEALED = the("batch.sealed")
ONE_SOURCE = {"key": "one"}
row = partial(Doctoring, "recalled", log="recalling")
RECALLING = (
    row("asked of an engine", also(change(RECALLS, recalls="", maker="engine"), RECALLED)),
    row("asked of an engine, for a recorded one", change(RECALLS, maker="engine"), names=("engine",)),
    row("another one asked for", also(change(RECALLS, recalls="x-s0"), RECALLED), names=("x-s0",)),
    row("made by an engine", change(RECALLED, origin=None), names=("engine",)),
    row("asked for without a prompt", again(RECALLS, group="x", sample="x-s0"), names=("[]",)),
    row(
        "asked of an engine beside them",
        again(RECALLS, index=9, sample="again-000000-s9", recalls="", maker="engine"),
        (),
    ),
    row("more than the prompt has", again(RECALLS, index=9, sample="again-000000-s9"), names=("draw-000003-s0",)),
    row(
        "a batch with others beside them",
        both(
            *(again(AGAIN, group=group, recalled=None) for group in "xy"),
            change(SEALED, groups=lambda groups: [*groups, "x", "y", "z"]),
        ),
        (),
    ),
    row(
        "made by an engine, as asked",
        both(change(RECALLS, recalls="", maker="engine"), change(RECALLED, origin=None)),
        (RECALLS, RECALLED),
    ),
    row("of a prompt that says nothing of it", change(AGAIN, recalled=None), (*ALL_ASKED, *ALL_RECALLED)),
    row("a group twice in a step", both(change(AGAIN, source=ONE_SOURCE), change(OTHER, source=ONE_SOURCE)), (SEALED,)),
    row("another sample", change(RECALLED, origin={"sample": "x-s0"}), (RECALLED, RECALLED), ("x-s0",)),
    row("of another run", change(RECALLED, origin={"run": "x"}), names=("x",)),
    row("younger than it is", change(RECALLED, spans=lambda spans: [[s, e, v + 1] for s, e, v in spans])),
    row("another digest", change(RECALLED, digest="00")),
    row("another position", change(RECALLED, origin={"position": 1}), names=(1,)),
)

TABLE = (*ROLLOUTS, *TOKENS, *REWARDS, *RECALLING)
