"""`check`: all findings in a log. Written from docs/events.md and the guarantees, not from the code that it checks.

It reads raw records only and imports nothing of the system, so that a mistake there cannot be repeated here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.life import Life
from tests.harness.history.order import Order
from tests.harness.history.prompts import Prompts
from tests.harness.history.record import Blob, Raw, read_record
from tests.harness.history.rollouts import Rollouts
from tests.harness.history.story import Story
from tests.harness.history.training import Training
from tests.harness.history.verdicts import Verdicts


def check(
    records: Iterable[Raw],
    *,
    foreign: Collection[int] = (),
    bound: int | None = None,
    blob: Blob | None = None,
    parent: Iterable[Raw] = (),
) -> list[Finding]:
    """Findings in the order of the log.

    records: (position, subject, data) of all events. foreign: positions of records that are none. bound: weight
    versions that a sample may be behind when it is trained on, by default what `run.started` says. blob: a payload by
    its sha256; without it the contents of arrays that lie in blobs are not looked at. parent: all records of the run
    whose rollouts this one is trained on.
    """
    parent_story = Story()
    unreadable = [finding for finding in _read(parent, parent_story, blob) if finding.kind is Kind.UNREADABLE]
    story = Story(bound=bound, samples=parent_story.samples, groups=parent_story.groups)
    return unreadable + _read(records, story, blob, foreign)


def _read(records: Iterable[Raw], story: Story, blob: Blob | None, foreign: Collection[int] = ()) -> list[Finding]:
    order = Order(foreign)
    checks = (order, Life(story), Prompts(story), Rollouts(story, blob), Verdicts(story), Training(story))
    findings: list[Finding] = []
    for raw in records:
        findings += order.position(raw[0])
        try:
            record = read_record(raw)
            story.events += 1
            findings += chain.from_iterable(check.apply(record) for check in checks)
        except (ValueError, KeyError, TypeError, OSError) as error:
            findings.append(Finding(Kind.UNREADABLE, raw[0], f"the record under {raw[1]} cannot be read: {error!r}"))
    return findings
