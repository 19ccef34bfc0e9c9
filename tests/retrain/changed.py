"""Changed copies of a log: what somebody could do to it who can write its bytes.

`python -m tests.retrain.changed ARCHIVE RUN COPY STEP`   the archive of a run again, one reward of a step flipped
"""

from __future__ import annotations

import enum
import sys
from typing import Any

from slime_events.loop.conductor.seal import batch_digest
from storage.archive.reader import ArchiveReader
from storage.memory_log import MemoryLog
from tests import made
from tests.audit.doctored import Doctored


class Care(enum.Enum):
    """Define how much of what follows from the reward is changed with it."""

    ASSIGNED = "reward.assigned alone"
    SEALED = "the batch too, without its digest"
    DIGEST = "the batch with its digest"
    COMMITTED = "the batch with its digest, there and in the commit"


def flip_reward(log: Doctored, step: int, care: Care) -> str:
    """The first sample of the step's batch is rewarded otherwise; which it is."""
    sealed = log.find("batch.sealed", where=lambda event: event["step"] == step).event
    sample = str(sealed["samples"][0])
    assigned = log.find("reward.assigned", where=lambda event: event["sample"] == sample).event
    assigned["value"] = 1.0 - assigned["value"]
    if care is Care.ASSIGNED:
        return sample
    sealed["raw_rewards"][0] = assigned["value"]
    sealed["rewards"][0] = -sealed["rewards"][0] or 1.0
    if care is Care.SEALED:
        return sample
    sealed["digest"] = _digest(log, sealed)
    if care is Care.COMMITTED:
        log.find("step.committed", where=lambda event: event["step"] == step).event["batch_digest"] = sealed["digest"]
    return sample


def _digest(log: Doctored, sealed: dict[str, Any]) -> str:
    done = {r.event["sample"]: r.event["digest"] for r in log.records if r.type == "rollout.completed"}
    lines = zip(sealed["samples"], sealed["rewards"], strict=True)
    return batch_digest(sealed["step"], [(sample, done[sample], reward) for sample, reward in lines])


async def as_log(log: Doctored) -> MemoryLog:
    """The changed records as a log."""
    copy = MemoryLog(log.run)
    await copy.restore(list(log.recorded()))
    return copy


def as_archive(log: Doctored, url: str) -> None:
    """The changed records as an archive."""
    made.archived(url, list(log.recorded()))


def main() -> None:
    """See the module."""
    url, run, copy, step = sys.argv[1:]
    log = Doctored.of(run, list(ArchiveReader(url, run).read()))
    sample = flip_reward(log, int(step), Care.COMMITTED)
    as_archive(log, copy)
    print(f"{copy}/{run}: the reward of {sample} is another one, in reward.assigned and in the batch of step {step}")


if __name__ == "__main__":
    main()
