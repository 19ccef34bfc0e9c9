"""`RecordedRolloutReader`: completes this run's samples with recorded rollouts of another run."""

import itertools
from collections.abc import Iterable

from msgspec.structs import replace

from schemas.arrays import Array, pack, pack_log_probs, pack_tokens, unpack
from schemas.errors import LogUnavailable, RunNotFound, SlimeEventsError, StorageError, StoreUnavailable
from schemas.event import Event
from schemas.ids import sibling_id
from schemas.rollouts import FailureKind, Origin, RolloutCompleted, RolloutFailed, Timings, WeightSpan
from schemas.subjects import about
from slime_events.core.checkpoint.vocabulary import check_ids
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.tokens.trajectory import Trajectories, Trajectory, merge_spans
from slime_events.loop.conductor.draw import ReusedRollout
from storage.log import Recorded


class RecordedRolloutReader:
    """Stateless: the run's state determines the due samples, and a repeated completion is the same event.

    worker: name recorded as the engine. archive: the run whose rollouts are reused; None if there is none. vocabulary:
    size of this run's vocabulary, which may be smaller than that run's; None is unknown.
    """

    def __init__(self, worker: str, archive: OpenedRun | None, vocabulary: int | None = None) -> None:
        self._worker, self._archive, self._vocabulary = worker, archive, vocabulary

    async def answers(self, due: Iterable[ReusedRollout]) -> list[Event]:
        """Return the completion of each rollout, or its failure. Raises StoreUnavailable, LogUnavailable."""
        events: list[Event] = []
        for rollout in due:
            try:
                events += await self._completed(rollout)
            except (StoreUnavailable, LogUnavailable):  # may be readable later
                raise
            except SlimeEventsError as error:
                failed = RolloutFailed(
                    sample=rollout.sample.sample,
                    group=rollout.group.group,
                    attempt=rollout.sample.attempt,
                    kind=FailureKind.INVALID,
                    message=str(error),
                    engine=self._worker,
                )
                events.append(failed)
        return events

    async def _completed(self, due: ReusedRollout) -> list[RolloutCompleted]:
        """Return the completions of all samples of the rollout in an engine's order: the requested sample last."""
        opened, path = self._archive, due.group.source_path
        if opened is None or opened.where != path:
            now = "no run" if opened is None else opened.where
            raise RunNotFound(f"rollout {due.recorded} was drawn from {path}, but the settings now name {now}")
        trajectories, ends = Trajectories(opened.fetch), list[Recorded]()
        for number in itertools.count():
            subject = about(opened.run, "rollout", sibling_id(due.recorded, number))
            events = [recorded async for recorded in opened.log.read(1, subject)]
            for recorded in events:
                trajectories.apply(recorded.envelope.event, recorded.position)
            if not events or not isinstance(events[-1].envelope.event, RolloutCompleted):
                break
            ends.insert(0, events[-1])
        if not ends:
            raise StorageError(f"the log of {opened.where} holds no completed rollout {due.recorded}")
        return [self._as_ours(opened, due, end, trajectories.by_sample[end.envelope.event.entity()]) for end in ends]

    def _as_ours(self, opened: OpenedRun, due: ReusedRollout, end: Recorded, whole: Trajectory) -> RolloutCompleted:
        """Return the completion as this run's: with all tokens inline and weight versions in this run's numbers."""
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
