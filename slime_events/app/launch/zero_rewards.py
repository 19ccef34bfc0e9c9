"""`ZeroRewardWatch`: says once that no answer of some steps has earned anything. Such a run learns nothing.

Mostly the grader does not find the answer where the model writes it, or the label is another than was thought.
"""

from schemas.batches import BatchSealed
from schemas.event import Event
from slime_events.core.config.settings import TrainSettings

STEPS = 5


class ZeroRewardWatch:
    """A fold of a run's batches. named: the run, as a command takes it."""

    def __init__(self, settings: TrainSettings, named: str) -> None:
        teaches = settings.algorithm.use_opd or settings.data.supervised or settings.run.tinker is not None
        self._is_on, self._named, self._steps = not teaches, named, 0

    def apply(self, event: Event) -> str | None:
        """Fold one event in; a sentence where it is news."""
        if not self._is_on or not isinstance(event, BatchSealed) or not event.raw_rewards:
            return None
        self._steps = 0 if any(event.raw_rewards) else self._steps + 1
        if self._steps != STEPS:
            return None
        self._is_on = False
        return (
            f"every reward of the last {STEPS} steps is 0, so nothing is learnt: `slime-events show {self._named} "
            f"--step {event.step}` lists the samples, and `--sample NAME` has an answer beside its label"
        )
