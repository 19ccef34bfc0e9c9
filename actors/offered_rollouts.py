"""`OfferedRollouts`: completes requested rollouts that outside producers have offered."""

from collections.abc import Iterable

import numpy as np
from msgspec import UNSET

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.ids import INBOX
from schemas.rewards import RewardAssigned
from schemas.rollouts import Origin, RolloutCompleted, RolloutOffered, WeightSpan
from schemas.subjects import of_type
from slime_events.core.tokens.trajectory import Fetch, content_digest
from slime_events.loop.conductor.draw import ReusedRollout
from slime_events.plugins.rewards.choice import OUTSIDE
from storage.log import Readable, Recorded


class OfferedRollouts:
    """Stateless: the run's state determines which rollouts are due.

    worker: name recorded as the engine.
    """

    def __init__(self, log: Readable, worker: str, fetch: Fetch) -> None:
        self._log, self._worker, self._fetch = log, worker, fetch

    async def answers(self, due: Iterable[ReusedRollout]) -> list[Event]:
        """Return the completion of each rollout, followed by its reward if the offer has one. Raises StorageError."""
        by_sample = {rollout.recorded: rollout for rollout in due if is_offered(rollout)}
        if not by_sample:
            return []
        last = await self._log.last_of_each([of_type(self._log.run, "rollout.offered", sample) for sample in by_sample])
        events: list[Event] = []
        for recorded in last.values():
            offer = recorded.envelope.event
            if isinstance(offer, RolloutOffered):
                events += self._completed(offer, recorded, by_sample[offer.sample])
        return events

    def _completed(self, offer: RolloutOffered, recorded: Recorded, due: ReusedRollout) -> list[Event]:
        tokens = self._fetch(offer.tokens)
        has_log_probs = offer.log_probs.n > 0
        log_probs = self._fetch(offer.log_probs) if has_log_probs else np.zeros(len(tokens), np.float32)
        mask = np.ones(len(tokens), np.int8) if offer.loss_mask is None else self._fetch(offer.loss_mask)
        log_probs = np.where(mask != 0, log_probs, np.float32(0))
        spans = spans_of(mask, offer.version) if has_log_probs else ()
        completed = RolloutCompleted(
            sample=offer.sample,
            group=offer.group,
            attempt=due.sample.attempt,
            start=0,
            length=len(tokens),
            prompt_length=due.group.prompt.n,
            stop=offer.stop,
            text=offer.text,
            spans=spans,
            digest=content_digest(tokens, log_probs),
            engine=self._worker,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            loss_mask=offer.loss_mask,
            metadata=offer.metadata,
            origin=Origin(self._log.run, offer.sample, recorded.position, spans),
            place=due.place,
        )
        if offer.reward is None:
            return [completed]
        grader = f"{OUTSIDE}:{offer.sender}" if offer.sender else OUTSIDE
        reward = RewardAssigned(
            sample=offer.sample, group=offer.group, value=offer.reward, grader=grader, grader_digest=""
        )
        return [completed, reward]


def is_offered(due: ReusedRollout) -> bool:
    """Return whether an outside producer, not another run, made the rollout."""
    return due.group.recalled is not UNSET and due.group.source_path == INBOX


def spans_of(mask: np.ndarray, version: int) -> tuple[WeightSpan, ...]:
    """Return a span per contiguous range of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask != 0, [0])).astype(np.int8)))
    return tuple(WeightSpan(int(start), int(end), version) for start, end in zip(edges[::2], edges[1::2], strict=True))
