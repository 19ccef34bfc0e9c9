"""Verdicts, batches, evaluations, and what a learner decides of another run's rollouts."""

from __future__ import annotations

import math
from functools import partial

from tests.audit.doctored import Doctored, Record
from tests.audit.doctoring import (
    Doctor,
    Doctoring,
    again,
    both,
    change,
    drop,
    every,
    following,
    move,
    position,
    say,
    the,
)
from tests.audit.doctorings.rollouts import ACCEPTED, ASKED, REWARD, S, failed, no_reward

REJECTED = the("group.rejected")
OF_REJECTED = the("reward.assigned", sample="train-0-000000-s0")
SEALED = the("batch.sealed", step=0)
SECOND = the("batch.sealed", step=1)
MEAN = the("eval.completed")

OF_SAMPLE = "rollout.requested", "rollout.progressed", "rollout.completed", "reward.assigned"
row = partial(Doctoring, "verdicts")
VERDICTS = (
    row("of no group", again(ACCEPTED, group="x")),
    row("of an evaluation", again(ACCEPTED, group="eval-held-v0-000000")),
    row("decided twice", again(ACCEPTED), names=(position(ACCEPTED),)),
    row("decided twice and otherwise", again(ACCEPTED, rewards=[], samples=[])),
    row(
        "a group of two",
        both(
            drop(*(every(kind, sample=S) for kind in OF_SAMPLE)),
            change(ACCEPTED, samples=lambda s: s[1:], rewards=lambda r: r[1:], figures=lambda figures: {}),
        ),
        (ACCEPTED,),
        (2, 3),
    ),
    row(
        "rejected by a rollout that had failed, on other rewards",
        both(
            say(failed(sample="train-0-000000-s0"), OF_REJECTED),
            change(REJECTED, cause="rollout_failed", rewards=[9.0] * 3, figures=lambda figures: {}),
        ),
        (REJECTED,),
    ),
    row(
        "rejected by a reward that did not come",
        both(drop(OF_REJECTED), change(REJECTED, cause="reward_failed", rewards=[], figures=lambda figures: {})),
        (REJECTED,),
    ),
    row("a sample left out", change(ACCEPTED, samples=lambda s: s[:-1]), names=(2, 3)),
    row("samples in another order", change(ACCEPTED, samples=lambda s: s[::-1])),
    row("rejected with a sample left out", change(REJECTED, samples=lambda s: s[:-1])),
    row("rejected without its samples", change(REJECTED, samples=[]), names=(0, 3)),
    row("a group of four", again(ASKED, sample=f"{S[:-1]}3", index=3), (ACCEPTED,) * 3),
    row("another reward", change(REWARD, value=0.5), (ACCEPTED,), (0.5,)),
    row("another reward of a rejected one", change(OF_REJECTED, value=0.5), (REJECTED,), (0.5,)),
    row("rejected without its rewards", change(REJECTED, rewards=[])),
    row("rejected as stale without its rewards", change(REJECTED, rewards=[], cause="stale")),
    row("rejected by a filter that failed", change(REJECTED, cause="filter_raised"), ()),
    row("rejected by a rollout that had not failed", change(REJECTED, cause="rollout_failed", rewards=[])),
    row(
        "rejected by a rollout that had failed",
        both(
            say(failed(sample="train-0-000000-s0"), OF_REJECTED),
            change(REJECTED, cause="rollout_failed", rewards=[], figures=lambda figures: {}),
        ),
        (),
    ),
    row("rejected by a reward that had not failed", change(REJECTED, cause="reward_failed", rewards=[])),
    row(
        "rejected by a reward that had failed",
        both(
            no_reward(OF_REJECTED, "train-0-000000-s0"),
            drop(OF_REJECTED),
            change(REJECTED, cause="reward_failed", rewards=[], figures=lambda figures: {}),
        ),
        (),
    ),
    *(row(f"another {name}", change(REJECTED, figures={name: 2.0}), names=(name, 2.0)) for name in ("mean", "std")),
    *(row(f"another {name}", change(REJECTED, figures={name: 9.0}), names=(name,)) for name in ("min", "max", "count")),
    row("stale by other weights", change(REJECTED, cause="stale", figures={"oldest_version": 1}), names=(0.0, 1)),
    row("another order", move(ACCEPTED, before=following(the("group.accepted", 1)))),
    row(
        "rejected before one that was asked for earlier had ended",
        move(the("reward.assigned", sample="train-0-000000-s2"), before=following(the("group.rejected"))),
        located=(the("group.accepted", group="train-0-000000"),),
        log="failing",
    ),
)


def backwards(values: list[object]) -> list[object]:
    return values[::-1]


def nothing(values: list[object]) -> list[object]:
    return []


COPIED = "groups", "samples", "rewards", "raw_rewards"


def sealed_again(log: Doctored) -> list[Record]:
    """The second batch is the first once more."""
    first = SEALED(log).event
    return change(SECOND, oldest_version=0, **{name: first[name] for name in COPIED})(log)


def sealed_twice(log: Doctored) -> list[Record]:
    """A finding for the step, and one for each group."""
    return again(SEALED)(log) * 3


def nth(place: int, value: float) -> object:
    return lambda values: [*values[:place], value, *values[place + 1 :]]


row = partial(Doctoring, "batches")
BATCHES = (
    row("of another step", change(the("batch.sealed", step=4), step=7), (the("batch.sealed", step=4),) * 2, (7, 4)),
    row("sealed twice", sealed_twice),
    row("samples in another order", change(SEALED, samples=lambda s: s[::-1])),
    row("a sample left out", change(SEALED, samples=lambda s: s[:-1])),
    row("all in another order", change(SEALED, **dict.fromkeys(("samples", "rewards", "raw_rewards"), backwards))),
    row("without groups", change(SEALED, **dict.fromkeys(COPIED, nothing), oldest_version=0)),
    row("another digest", change(SEALED, digest="0" * 64)),
    row("removed samples of another", change(SEALED, removed=("train-9-000009-s0",))),
    row("other oldest weights", change(SECOND, oldest_version=0), names=("v0", "v1")),
    row("a group that was not accepted", drop(ACCEPTED), (SEALED,), ("train-0-000004",)),
    row("a group that is nobody's", change(SEALED, groups=lambda g: ["x", *g]), names=("x",)),
    row("groups that were in another", sealed_again, (SECOND,) * 3, (0,)),
    row("another raw reward", change(SEALED, raw_rewards=nth(0, 9.0))),
    row(
        "a reward without end",
        both(change(REWARD, value=math.inf), change(SEALED, raw_rewards=nth(0, math.inf))),
        names=("inf",),
    ),
    row("another advantage", change(SEALED, rewards=nth(0, 9.0)), (SEALED,) * 2),
    row("an advantage left out", change(SEALED, rewards=lambda r: r[:-1]), (SEALED,) * 2),
)

EVALUATED = the("rollout.requested", sample="eval-held-v0-000000-s0")
row = partial(Doctoring, "evaluations")
EVALUATIONS = (
    row("of no evaluation", again(MEAN, version=9), names=("v9",)),
    row("of no set", again(MEAN, dataset="x"), names=("x",)),
    row("ended twice", again(MEAN)),
    row("without a reward", drop(the("reward.assigned", group="eval-held-v0-000000")), (MEAN,) * 3, (1,)),
    row("more samples", change(MEAN, samples=5), names=(5, 4)),
    row("more that failed", change(MEAN, failed=1), names=(1, 0)),
    row("another mean", change(MEAN, mean=1.5), names=("mean", 1.5)),
    row("of any weights", change(EVALUATED, max_version=None), names=("v0",)),
    row("of newer weights", change(EVALUATED, min_version=1, max_version=1), names=("v0",)),
    row("older weights", change(MEAN, oldest_version=-7), names=("v-7", "v0")),
    row("newer weights", change(MEAN, newest_version=7), names=("v7", "v0")),
    row("other pass rates", change(MEAN, pass_rates={"pass@1": 0.5, "pass@2": 1.0}), names=("pass@2",)),
    row("without pass rates", change(MEAN, pass_rates={}), ()),
    row("by a function", again(MEAN, version=9, function="m:f", rewards=[0.5, 1.0], mean=0.75), ()),
    row(
        "another mean of a function", again(MEAN, version=9, function="m:f", rewards=[0.5], mean=0.7), names=(0.7, 0.5)
    ),
    row("another length", change(MEAN, mean_length=23.0), names=("mean_length", 23.0, 24.0)),
)

COMMITTED = the("step.committed")


def trained_twice(log: Doctored) -> list[Record]:
    """The second batch has a sample of the first instead of its own first."""
    first, second = SEALED(log).event, SECOND(log)
    second.event["samples"][0], second.event["groups"][0] = first["samples"][0], first["groups"][0]
    return [second]


def renamed(old: str, new: str) -> Doctor:
    return change(
        SEALED,
        samples=lambda samples: [sample.replace(old, new) for sample in samples],
        groups=lambda groups: [group.replace(old, new) for group in groups],
    )


row = partial(Doctoring, "followed", log="learner")
FOLLOWED = (
    row("of another step", change(SEALED, step=1), (SEALED,) * 2, (1, 0)),
    row("groups in another order", change(SEALED, groups=lambda g: g[::-1])),
    row("a sample of no group of it", change(SEALED, groups=lambda g: g[1:]), (SEALED,) * 2),
    row("a sample trained twice", trained_twice, (SECOND,) * 4),
    row(
        "samples that are nobody's",
        renamed("-000000", "-999999"),
        (*(SEALED,) * 3, COMMITTED),
        ("train-0-999999-s0", "sim"),
    ),
    row("a reward without end", change(SEALED, raw_rewards=nth(0, math.inf)), names=("inf",)),
    row("another advantage", change(SEALED, rewards=nth(0, 9.0)), (SEALED,) * 2),
    row("another digest", change(SEALED, digest="0" * 64), names=("sim",)),
    row("another count of tokens", change(COMMITTED, tokens=1), names=(1, 192)),
)

TABLE = (*VERDICTS, *BATCHES, *EVALUATIONS, *FOLLOWED)
