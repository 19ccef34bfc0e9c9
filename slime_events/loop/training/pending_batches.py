"""`OpenBatches`: sealed batches that were not trained yet, and what they are made of. A fold of the log.

Rollouts are held from their request until their batch is trained or their group is rejected: what it takes does not
grow with the log.
"""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected
from schemas.rollouts import RolloutRequested
from slime_events.core.train_batch import TrainBatch
from slime_events.core.trajectory import FOLDED, Fetch, Trajectories
from slime_events.loop.training.batch_builder import make_batch


class OpenBatches:
    """sealed: by step. temperature: the rollout's, which log-probs are taken at. folded: the types of events that they
    are made of; any other is passed over, so nobody need bring more.
    """

    folded: tuple[type[Event], ...] = (*FOLDED, BatchSealed, GroupRejected)

    def __init__(self, fetch: Fetch, *, temperature: float) -> None:
        self._fetch, self._temperature = fetch, temperature
        self._trajectories = Trajectories(fetch)
        self.sealed: dict[int, BatchSealed] = {}

    def apply(self, event: Event, position: int) -> None:
        """Fold one event in; those of evaluations, and those that no batch is made of, are passed over."""
        if not isinstance(event, self.folded):
            return
        if isinstance(event, RolloutRequested) and event.purpose is Purpose.EVAL:
            return
        if isinstance(event, BatchSealed):
            self.sealed[event.step] = event
        elif isinstance(event, GroupRejected):
            self._trajectories.forget(event.samples)
        else:
            self._trajectories.apply(event, position)

    def knows(self, sample: str) -> bool:
        """Whether it was asked for, to be trained on, and is not done with."""
        return sample in self._trajectories.by_sample

    def make(self, step: int) -> TrainBatch:
        """The batch of a step. Raises StorageError where the log does not hold exactly what was sealed."""
        return make_batch(self.sealed[step], self._trajectories.by_sample, self._fetch, temperature=self._temperature)

    async def made(self, step: int) -> TrainBatch:
        """`make`, once what it is made of was read: of the log's own rollouts that is so when the batch is sealed."""
        return self.make(step)

    def forget(self, step: int) -> None:
        """Let go of what a trained step was made of."""
        done = self.sealed.pop(step, None)
        self._trajectories.forget(done.samples if done else ())
