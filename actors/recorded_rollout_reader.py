"""`RecordedRolloutReader`: reads recorded rollouts of another run as completions of this run's samples."""

import itertools
from collections.abc import Iterable

from msgspec.structs import replace

from schemas.arrays import Array, pack, pack_log_probs, pack_tokens, unpack
from schemas.errors import LogUnavailable, RunNotFound, SlimeEventsError, StorageError, StoreUnavailable
from schemas.event import Event
from schemas.ids import sibling_id
from schemas.rollouts import FailureKind, Origin, RolloutCompleted, RolloutFailed, Timings, WeightSpan
from schemas.subjects import about
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.trajectory import Trajectories, Trajectory, merge_spans
from slime_events.core.vocabulary import check_ids
from slime_events.loop.conductor.draw import ReusedRollout
from storage.log import Recorded


class RecordedRolloutReader:
    """worker: named as the engine. archive: the run that rollouts are drawn from now; None: there is none. vocabulary:
    ids of this run's model, which may have fewer than that run's; None is unknown.

    It has no state: the due samples follow from the run's state, and a repeated completion is the same event.
    """

    def __init__(self, worker: str, archive: OpenedRun | None, vocabulary: int | None = None) -> None:
        self._worker, self._archive, self._vocabulary = worker, archive, vocabulary

    async def answers(self, due: Iterable[ReusedRollout]) -> list[Event]:
        """The completion of each, or its failure. Raises StoreUnavailable, LogUnavailable."""
        events: list[Event] = []
        for one in due:
            try:
                events += await self._completed(one)
            except (StoreUnavailable, LogUnavailable):  # it may be readable later
                raise
            except SlimeEventsError as error:
                failed = RolloutFailed(
                    sample=one.sample.sample,
                    group=one.group.group,
                    attempt=one.sample.attempt,
                    kind=FailureKind.INVALID,
                    message=str(error),
                    engine=self._worker,
                )
                events.append(failed)
        return events

    async def _completed(self, due: ReusedRollout) -> list[RolloutCompleted]:
        """Completions of all samples of the rollout: the further ones first, in an engine's order."""
        opened, path = self._archive, due.group.source_path
        if opened is None or opened.where != path:
            now = "nothing" if opened is None else opened.where
            raise RunNotFound(f"it is {due.recorded} of {path}, and since it was drawn {now} is set to recall from")
        trajectories, ends = Trajectories(opened.fetch), list[Recorded]()
        for number in itertools.count():
            subject = about(opened.run, "rollout", sibling_id(due.recorded, number))
            events = [one async for one in opened.log.read(1, subject)]
            for one in events:
                trajectories.apply(one.envelope.event, one.position)
            if not events or not isinstance(events[-1].envelope.event, RolloutCompleted):
                break
            ends.insert(0, events[-1])
        if not ends:
            raise StorageError(f"the log of {opened.where} holds no completed rollout {due.recorded}")
        return [self._as_ours(opened, due, end, trajectories.by_sample[end.envelope.event.entity()]) for end in ends]

    def _as_ours(self, opened: OpenedRun, due: ReusedRollout, end: Recorded, whole: Trajectory) -> RolloutCompleted:
        """The recorded completion with all its tokens inline, and its weight versions as this run counts them."""
        event, sample = end.envelope.event, due.sample.sample
        assert isinstance(event, RolloutCompleted)
        check_ids(whole.tokens, self._vocabulary, f"sample {event.sample} of {opened.run}: tokens")
        if event.prompt is not None:
            check_ids(opened.fetch(event.prompt), self._vocabulary, f"sample {event.sample} of {opened.run}: prompt")
        elif due.group.prompt.blob is None:
            check_ids(unpack(due.group.prompt), self._vocabulary, "prompt")
        common = due.recalled.common
        spans = tuple(WeightSpan(span.start, span.end, common.number(span.version)) for span in event.spans)

        def inline(array: Array | None) -> Array | None:
            return None if array is None else pack(opened.fetch(array), array.dtype)

        return replace(
            event,
            sample=sample + event.sample.removeprefix(due.recorded),
            group=due.group.group,
            attempt=due.sample.attempt,
            start=0,
            spans=merge_spans((), spans),
            engine=self._worker,
            tokens=pack_tokens(whole.tokens),
            log_probs=pack_log_probs(whole.log_probs),
            loss_mask=inline(event.loss_mask),
            credit=inline(event.credit),
            timings=Timings(),
            rollout=sample if event.rollout else "",
            prompt=inline(event.prompt),
            origin=Origin(opened.run, event.sample, end.position, event.spans),
            place=due.place,
        )
