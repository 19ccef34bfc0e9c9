"""The record itself, the run's beginning and ends, prompts, the archive, the fold, weight folders."""

from __future__ import annotations

from functools import partial

from schemas.archives import ArchiveSealed
from schemas.runs import FinishReason, RunFailed
from tests import made
from tests.audit.doctored import Doctored, Record
from tests.audit.doctoring import (
    Doctor,
    Doctoring,
    again,
    also,
    both,
    change,
    drop,
    following,
    move,
    position,
    say,
    the,
)
from tests.audit.doctorings.rollouts import ASKED, DONE, REWARD

NOBODY = "0" * 32
LESS = 364
"""Events before the end, with one taken out."""
MEAN = the("eval.completed")
END = the("run.finished")
DECISIONS = ("rollout.requested", "group.accepted", "group.rejected", "batch.sealed", "eval.completed")


def last(log: Doctored) -> Record:
    return log.records[-1]


def hole(log: Doctored) -> int:
    """The first position that is not there."""
    return next(place for place, record in enumerate(log.records, 1) if record.position != place)


def hole_end(log: Doctored) -> int:
    """The last one of that hole."""
    return log.records[hole(log) - 1].position - 1


def swapped(log: Doctored) -> list[Record]:
    """A mean and the record behind it, with the positions that they had."""
    mean = MEAN(log)
    behind = following(MEAN)(log)
    log.move(behind, before=mean)
    return [behind, mean, following(MEAN)(log)]


def segments(
    *bounds: tuple[int, int], urls: tuple[str, ...] = ("a/", "a/"), numbers: tuple[int, ...] = (1, 2)
) -> Doctor:
    """Segments of these positions, said at the log's end."""
    sealed = [
        ArchiveSealed(segment=number, first=first, last=final, sha256="", bytes=1, url=f"{url}{number}")
        for number, (first, final), url in zip(numbers, bounds, urls, strict=False)
    ]
    return both(*(say(event, last) for event in sealed))


def ended() -> Doctor:
    """The run ends once more, without a word between."""
    return lambda log: say(made.finished(FinishReason.INTERRUPTED, steps=5, events=len(log.records)), last)(log)


def passed_over(log: Doctored) -> list[Record]:
    """A branch's second prompt is one that its parent had trained on."""
    branched = the("run.started")(log).event["branched"]
    branched["passed"] = {path: [3] for path in branched["cursors"]}
    return [the("prompt.submitted", 1)(log)]


def inbox(*keys: str) -> Doctor:
    """Write prompts with these keys, from outside. The first one comes last."""

    def doctor(log: Doctored) -> list[Record]:
        records = [again(FIRST, after=MEAN, group="x", source={"path": "inbox", "key": key})(log) for key in keys]
        return records[0]

    return doctor


row = partial(Doctoring, "positions")
POSITIONS = (
    row("one taken out", drop(MEAN, renumber=False), (following(MEAN),), (hole,)),
    row("two taken out", drop(MEAN, following(MEAN), renumber=False), (following(following(MEAN)),), (hole, hole_end)),
    row("two changed places", swapped),
    row("on another subject", change(REWARD, record={"subject": "slime.sim.x"}), names=("slime.sim.x",)),
    row("another run's", change(MEAN, record={"run": "x"}), (MEAN, MEAN)),
    row(
        "moved here from another run",
        change(MEAN, record={"run": "x", "subject": "slime.x.eval.completed.held-v0"}),
        (MEAN, MEAN),
    ),
    row("about another step", change(the("step.committed"), step=9), (the("step.committed"),) * 2),
    row("another id", change(MEAN, record={"id": NOBODY})),
    row("said twice", again(MEAN), names=(position(MEAN),)),
    row("a cause that is nobody", change(MEAN, record={"cause": NOBODY}), names=(NOBODY,)),
    row("before its cause", move(REWARD, before=DONE)),
    row("without a cause", change(MEAN, record={"cause": None}), ()),
)

DONE_ALL = "finished (all_steps)"
FAILED = RunFailed(role="x", reason="x")
RESUMED = made.resumed()
row = partial(Doctoring, "lifetime")
LIFETIME = (
    row("no beginning", drop(the("run.started")), (following(the("run.started")), END)),
    row("begun twice", also(again(the("run.started"), after=MEAN), END)),
    *(row(f"{kind} after the end", again(the(kind), after=END)) for kind in DECISIONS),
    row("ended after the end", ended(), names=(position(END),)),
    row("a reward after the end", again(REWARD, after=END), (), counts={"end": DONE_ALL, "events after an end": 1}),
    row(
        "a decision after a failure",
        both(drop(END), say(FAILED, last), again(ASKED, after=last)),
        counts={"end": "failed"},
    ),
    row(
        "a decision after a resumption",
        both(say(RESUMED, END), again(ASKED, after=last)),
        (),
        counts={"end": "running", "resumptions": 1, "events after an end": 0},
    ),
    row("a resumption left out", say(made.resumed(2), END), names=(2, 0)),
    row("resumed twice at once", both(say(RESUMED, END), say(RESUMED, last)), names=(1,)),
    row("other events before the end", change(END, events=7), names=(7,)),
    row("other steps at the end", change(END, steps=6), names=(6, 5)),
    row("ended before it was done", both(drop(the("step.committed", 4)), change(END, steps=4, events=LESS)), (END,)),
    row(
        "interrupted", both(drop(the("step.committed", 4)), change(END, steps=4, events=LESS, reason="interrupted")), ()
    ),
)

FIRST, SECOND = the("prompt.submitted", purpose=None), the("prompt.submitted", 1, purpose=None)
REJECTED = the("prompt.rejected")
OF_SET = the("prompt.submitted", dataset="held", version=2)
row = partial(Doctoring, "prompts")
PROMPTS = (
    row("one skipped", drop(REJECTED), (SECOND,), (1,)),
    row("two skipped", drop(FIRST, REJECTED), (SECOND,), (0, 1)),
    row("a refused one skipped", drop(FIRST), (REJECTED,), (0,)),
    row("a line that is not an object", again(REJECTED, source={"offset": -1}), ()),
    row("one of a set refused", again(REJECTED, dataset="held"), (), counts={"refused": 4, "drawn": 17}),
    row("drawn twice", again(SECOND, group="x"), names=(2, 3)),
    row("refused what was drawn", again(REJECTED, source={"offset": 0}), names=(0, 2)),
    row(
        "drawn from a new source",
        again(the("prompt.submitted"), group="x", source={"path": "/new", "offset": 0}),
        (),
        log="branch",
    ),
    row("refused twice", again(REJECTED), names=(1, 2)),
    row("drawn later", move(FIRST, before=following(SECOND)), (REJECTED, FIRST), (0,)),
    row("from outside", inbox("a", "b"), (), counts={"from outside": 2, "drawn": 17, "sources": 1}),
    row("from outside twice", inbox("a", "a"), names=("'a'",)),
    row("a set without a prompt", drop(OF_SET), (the("eval.completed", version=2),), (0, 0)),
    row("a set with another prompt", change(OF_SET, source={"offset": 9}), (the("eval.completed", version=2),), (0,)),
    row("a set with a prompt twice", again(OF_SET, group="x"), names=(0, "v2")),
    row(
        "drawn by its parent",
        change(the("prompt.submitted"), source={"offset": 0}),
        (the("prompt.submitted"), the("prompt.submitted", 1)),
        (0, 2),
        "branch",
    ),
    row("passed over", passed_over, names=(3, 4), log="branch"),
)

row = partial(Doctoring, "archive")
ARCHIVE = (
    row("a gap", segments((1, 10), (12, 20)), names=(12, 10)),
    row("an overlap", segments((1, 10), (10, 20)), names=(10,)),
    row("joined", segments((1, 10), (11, 20)), (), counts={"segments": 2, "positions": 20}),
    row("a beginning that is missing", segments((2, 10)), names=(2,)),
    row("another archive", segments((1, 10), (1, 20), urls=("a/", "b/"), numbers=(1, 1)), ()),
    row("continues in another archive", segments((1, 10), (12, 20), urls=("a/", "b/")), ()),
    row("a first one that nobody spoke of", segments((31, 40), numbers=(3,)), ()),
    row("segments that nobody spoke of", segments((1, 10), (31, 40), numbers=(1, 4)), ()),
    row("sealed before it was written", segments((1, 10), (11, 368)), names=(11, 368)),
    row("sealed up to the record before", segments((1, 10), (11, 367)), ()),
    row("backwards", segments((1, 10), (11, 10))),
    row("of one record", segments((1, 10), (11, 11)), ()),
)

row = partial(Doctoring, "fold")
FOLD = (
    row("a byte that nobody reads", change(REWARD, record={"at": 7}), (END,)),
    row(
        "an end of other rules",
        both(change(REWARD, record={"at": 7}), change(END, fold=1)),
        (),
        counts={"ends compared": 0, "ends of other fold rules": 1},
    ),
    row("a batch of a group that is nobody's", change(the("batch.sealed"), groups=["x"])),
)

PUBLISHED = the("weights.published", version=3)
row = partial(Doctoring, "files")
FILES = (
    row("another digest", change(PUBLISHED, digest="0" * 64)),
    row("removed since", change(PUBLISHED, url="/gone/v000003"), ()),
    row("far away", change(PUBLISHED, url="s3://x/v000003"), (), counts={"verified": 5, "removed since": 1}),
)

TABLE = (*POSITIONS, *LIFETIME, *PROMPTS, *ARCHIVE, *FOLD, *FILES)
