"""`Recaller`: recorded rollouts of another run, read as the completions of this run's samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from msgspec.structs import replace

from schemas.arrays import Array, pack, pack_log_probs, pack_tokens
from schemas.errors import LogUnavailable, RunNotFound, SlimeEventsError, StorageError, StoreUnavailable
from schemas.event import Event
from schemas.ids import sibling_id
from schemas.rollouts import FailureKind, Origin, RolloutCompleted, RolloutFailed, Timings, WeightSpan
from schemas.subjects import about
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.trajectory import Trajectories, Trajectory, merge_spans
from slime_events.loop.conductor.recall import Recall
from storage.log import Recorded

AWAY = (StoreUnavailable, LogUnavailable)
"""What is recorded may be there another time."""


class Recaller:
    """worker: who says it. archive: what recorded rollouts are drawn from now; None: nothing is.

    It holds nothing: what is due follows from the state, and a completion that is said twice is one event.
    """

    def __init__(self, worker: str, archive: OpenedRun | None) -> None:
        self._worker, self._archive = worker, archive

    async def answers(self, due: Iterable[Recall]) -> list[Event]:
        """The completion of each, or why there is none. Raises StoreUnavailable, LogUnavailable."""
        return [event for recall in due for event in await self._answer(recall)]

    async def _answer(self, recall: Recall) -> list[Event]:
        try:
            return [*await self._completed(self._opened(recall), recall)]
        except AWAY:
            raise
        except SlimeEventsError as error:
            failed = RolloutFailed(
                sample=recall.sample.sample,
                group=recall.group.group,
                attempt=recall.sample.attempt,
                kind=FailureKind.INVALID,
                message=str(error),
                engine=self._worker,
            )
            return [failed]

    def _opened(self, recall: Recall) -> OpenedRun:
        path = recall.group.source_path
        if self._archive is None or self._archive.where != path:
            now = "nothing" if self._archive is None else self._archive.where
            raise RunNotFound(f"it is {recall.recorded} of {path}, and since it was drawn {now} is set to recall from")
        return self._archive

    async def _completed(self, opened: OpenedRun, recall: Recall) -> list[RolloutCompleted]:
        """Of all samples of the rollout: the further ones first, as an engine says them."""
        trajectories, ends = Trajectories(opened.fetch), list[Recorded]()
        for number in itertools.count():
            subject = about(opened.run, "rollout", sibling_id(recall.recorded, number))
            said = [one async for one in opened.log.read(1, subject)]
            for one in said:
                trajectories.apply(one.envelope.event, one.position)
            if not said or not isinstance(said[-1].envelope.event, RolloutCompleted):
                break
            ends.insert(0, said[-1])
        if not ends:
            raise StorageError(f"the log of {opened.where} holds no completed rollout {recall.recorded}")
        return [self._as_ours(opened, recall, end, trajectories.by_sample[end.envelope.event.entity()]) for end in ends]

    def _as_ours(self, opened: OpenedRun, recall: Recall, end: Recorded, whole: Trajectory) -> RolloutCompleted:
        """The recorded completion with all its tokens in it, and its weight versions as they count here."""
        event, sample = end.envelope.event, recall.sample.sample
        assert isinstance(event, RolloutCompleted)
        common = recall.recalled.common
        spans = tuple(WeightSpan(span.start, span.end, common.number(span.version)) for span in event.spans)

        def inline(array: Array | None) -> Array | None:
            return None if array is None else pack(opened.fetch(array), array.dtype)

        return replace(
            event,
            sample=sample + event.sample.removeprefix(recall.recorded),
            group=recall.group.group,
            attempt=recall.sample.attempt,
            start=0,
            spans=merge_spans((), spans),
            engine=self._worker,
            tokens=pack_tokens(whole.tokens),
            log_probs=pack_log_probs(whole.log_probs),
            loss_mask=inline(event.loss_mask),
            timings=Timings(),
            rollout=sample if event.rollout else "",
            prompt=inline(event.prompt),
            origin=Origin(opened.run, event.sample, end.position, event.spans),
        )
