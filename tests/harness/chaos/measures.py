"""Measures of the kills that a run went through: pure functions over its events and the kills."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed
from schemas.steps import StepCommitted
from slime_events.core.tokens.trajectory import Fetch, content_digest
from storage.log import Recorded
from tests.harness.chaos.killer import ROLES, Struck
from tests.harness.chaos.schedule import Kind
from tests.harness.chaos.watcher import Sighting, tokens_in

ScalarT = TypeVar("ScalarT", bound=np.generic)
NANO = 1e-9
BACK = ROLES | {Kind.SCHEDULER: "engine", Kind.RANK: "trainer", Kind.DRIVER: "conductor", Kind.MACHINE: "conductor"}
"""The role whose `worker.joined` shows that what was killed is replaced."""


@dataclass(slots=True)
class _Acked:
    """Tokens of one sample from its chunks, in order; `lost` counts those that did not stay."""

    tokens: list[npt.NDArray[np.int32]] = field(default_factory=list)
    log_probs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    length: int = 0
    in_chunks: int = 0
    lost: int = 0


def tokens_lost(events: Iterable[Event], fetch: Fetch) -> dict[str, int]:
    """Return the acked tokens by sample that are not where their chunk put them in the sample's final history.

    Lost are tokens that a later chunk or end writes over, all of a sample whose end does not have the digest of what
    its chunks and its end join to, and all of a sample that was given up because engines failed on it.
    """
    acked: dict[str, _Acked] = {}
    failed: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, RolloutProgressed):
            _join(acked.setdefault(event.sample, _Acked()), event, fetch)
        elif isinstance(event, RolloutCompleted):
            sums = acked.setdefault(event.sample, _Acked())
            _join(sums, event, fetch)
            whole = content_digest(_joined(sums.tokens, np.int32), _joined(sums.log_probs, np.float32))
            if whole != event.digest or sums.length != event.length:
                sums.lost = sums.in_chunks
        elif isinstance(event, RolloutFailed) and event.kind is FailureKind.ENGINE:
            failed.setdefault(event.group, set()).add(event.sample)
        elif isinstance(event, GroupRejected) and event.cause is RejectionCause.ROLLOUT_FAILED:
            for sample in failed.get(event.group, ()):
                sums = acked.setdefault(sample, _Acked())
                sums.lost = sums.in_chunks
    return {sample: sums.lost for sample, sums in acked.items() if sums.lost}


def _join(sums: _Acked, event: RolloutProgressed | RolloutCompleted, fetch: Fetch) -> None:
    if event.start != sums.length:  # again, or with a hole: the tokens from there on are not the acked ones
        sums.lost += max(0, sums.length - event.start)
        sums.tokens = [_joined(sums.tokens, np.int32)[: event.start]]
        sums.log_probs = [_joined(sums.log_probs, np.float32)[: event.start]]
        sums.length = len(sums.tokens[0])
    if event.tokens.n:
        sums.tokens.append(fetch(event.tokens))
        sums.log_probs.append(fetch(event.log_probs))
        sums.length += event.tokens.n
        sums.in_chunks += event.tokens.n if isinstance(event, RolloutProgressed) else 0


def _joined(parts: Sequence[npt.NDArray[ScalarT]], dtype: type[ScalarT]) -> npt.NDArray[ScalarT]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def vanished(sightings: Iterable[Sighting], log: Sequence[Recorded]) -> list[int]:
    """Positions of events that a reader outside saw while the run was on, and that are not what the log holds there."""
    ids = {recorded.position: recorded.envelope.id for recorded in log}
    return [sighting.position for sighting in sightings if ids.get(sighting.position) != sighting.id]


def trained(events: Iterable[Event]) -> list[str]:
    """Return the samples of all committed steps, in the order of training; a repeated step counts again."""
    batches: dict[str, BatchSealed] = {}
    samples: list[str] = []
    for event in events:
        if isinstance(event, BatchSealed):
            batches[event.digest] = event
        elif isinstance(event, StepCommitted):
            samples += batches[event.batch_digest].samples if event.batch_digest in batches else ()
    return samples


def trained_twice(events: Iterable[Event]) -> list[str]:
    """Return the samples that were trained more than once."""
    return [sample for sample, count in Counter(trained(events)).items() if count > 1]


def trained_lengths(events: Sequence[Event]) -> list[int]:
    """Return the response tokens of every trained sample, in the order of training."""
    length = {event.sample: event.length for event in events if isinstance(event, RolloutCompleted)}
    return [length[sample] for sample in trained(events)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Prompts of training files by their offset. skipped: never drawn though a later one was. repeated: drawn again.

    forgotten: groups without any fate (trained or rejected) at the end of a run in which nothing may wait.
    """

    skipped: tuple[str, ...]
    repeated: tuple[str, ...]
    forgotten: tuple[str, ...]


def prompts_drawn(events: Sequence[Event], *, nothing_waits: bool) -> Drawn:
    """Return how the prompts of the run were drawn. nothing_waits: a synchronous run ends without open groups."""
    offsets: dict[str, Counter[int]] = {}
    groups: set[str] = set()
    rejected = {event.group for event in events if isinstance(event, GroupRejected)}
    for event in events:
        if not isinstance(event, PromptSubmitted | PromptRejected) or event.source.path == "inbox":
            continue
        if isinstance(event, PromptSubmitted):
            if event.purpose is not Purpose.TRAIN:
                continue
            groups.add(event.group)
        elif event.dataset != "train":
            continue
        offsets.setdefault(event.source.path, Counter())[event.source.offset] += 1
    in_training = {sample.rpartition("-s")[0] for sample in trained(events)}
    return Drawn(
        skipped=tuple(f"{path}@{o}" for path, seen in offsets.items() for o in range(max(seen)) if o not in seen),
        repeated=tuple(f"{path}@{o}" for path, seen in offsets.items() for o, count in seen.items() if count > 1),
        forgotten=tuple(sorted(groups - rejected - in_training)) if nothing_waits else (),
    )


def weight_digests(events: Iterable[Event]) -> dict[int, str]:
    """Return the digest of the weights by version, from the commits."""
    return {event.version: event.weights_digest for event in events if isinstance(event, StepCommitted)}


def tokens_in_log(events: Iterable[Event]) -> int:
    """Return the response tokens that the log holds, evaluations included."""
    return sum(map(tokens_in, events))


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from one kill to the first new token and to a successor's `worker.joined`; None if it did not come.

    start_s: what the successor's own start took of them, as it says; before that it was missed and its process made.
    alone: the run made tokens when it struck, and no other kill came before they were made again. What another kill
    falls into, or a start, is not owed to this one.
    """

    struck: Struck
    first_token_s: float | None
    back_s: float | None
    start_s: float
    alone: bool


def recoveries(struck: Sequence[Struck], sightings: Sequence[Sighting]) -> list[Recovery]:
    """Measure the recovery from each kill.

    A token is new if its stamp is after the kill: one sent before does not count. A dead driver's
    engines work for a moment longer; their tokens do not count before the run was resumed.
    """
    measured: list[Recovery] = []
    well_since: float = next((sighting.seen_at for sighting in sightings if sighting.tokens), math.inf)
    for kill, after in zip(struck, [*struck[1:], None], strict=True):
        next_at = after.at if after else math.inf
        was_well = well_since <= kill.at
        token, joined = _signs_of_life(kill, sightings)
        well_since = token.seen_at if token else math.inf
        measured.append(
            Recovery(
                struck=kill,
                first_token_s=_seconds_after(kill, token),
                back_s=_seconds_after(kill, joined),
                start_s=joined.start_s if joined else 0.0,
                alone=was_well and well_since <= next_at,
            )
        )
    return measured


def _signs_of_life(struck: Struck, sightings: Sequence[Sighting]) -> tuple[Sighting | None, Sighting | None]:
    """Return the sightings of the first new token after a kill, and of the successor."""
    later = [sighting for sighting in sightings if sighting.at > struck.at]
    if struck.kind in (Kind.DRIVER, Kind.MACHINE):
        resumed = next((index for index, sighting in enumerate(later) if sighting.resumed), len(later))
        later = later[resumed:]
    token = next((sighting for sighting in later if sighting.tokens), None)
    joined = next((sighting for sighting in later if sighting.joined == BACK.get(struck.kind, "-")), None)
    return token, joined


def _seconds_after(struck: Struck, sighting: Sighting | None) -> float | None:
    return (sighting.seen_at - struck.at) * NANO if sighting else None


def parts(measured: Sequence[Recovery]) -> dict[str, float]:
    """Return the median seconds of each part of the recoveries of one kind."""
    back = [(recovery, recovery.back_s) for recovery in measured if recovery.back_s is not None]
    if not back:
        return {}
    to_token = [recovery.first_token_s - back_s for recovery, back_s in back if recovery.first_token_s is not None]
    medians = {
        "until the successor's start": [back_s - recovery.start_s for recovery, back_s in back],
        "its start": [recovery.start_s for recovery, _ in back],
        "then to a token": [max(0.0, seconds) for seconds in to_token],
    }
    return {name: round(statistics.median(seconds), 2) for name, seconds in medians.items() if seconds}


def middle_and_worst(seconds: Iterable[float | None]) -> dict[str, float | int]:
    """Return the median and the maximum without None; `open`: the number of None."""
    values = list(seconds)
    numbers = sorted(each for each in values if each is not None)
    if not numbers:
        return {"count": 0, "open": len(values)}
    return {
        "count": len(numbers),
        "open": len(values) - len(numbers),
        "median": round(statistics.median(numbers), 3),
        "worst": round(numbers[-1], 3),
    }


def ks_distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the largest difference between two empirical distribution functions (Kolmogorov-Smirnov), 0 to 1."""
    if not first or not second:
        return 0.0 if len(first) == len(second) else 1.0
    points = np.unique(np.concatenate([first, second]))
    below = [np.searchsorted(np.sort(values), points, side="right") / len(values) for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def ks_critical(first: int, second: int) -> float:
    """Return the `ks_distance` that two samples of one distribution exceed in one case of a thousand."""
    return float(1.949 * np.sqrt((first + second) / (first * second))) if first and second else 1.0
