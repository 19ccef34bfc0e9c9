"""`ZeroRewardWatch`: report once that all rewards of several steps are 0. Such a run learns nothing.

Usually the grader does not find the answer in the text of the model, or the label is not the expected one.
"""

from schemas.batches import BatchSealed
from schemas.event import Event
from slime_events.core.config.settings import TrainSettings

STEPS = 5


class ZeroRewardWatch:
    """A fold of a run's batches."""

    def __init__(self, settings: TrainSettings, named: str) -> None:
        """named: the run as a command takes it."""
        teaches = settings.algorithm.use_opd or settings.data.supervised or settings.run.tinker is not None
        self._is_on, self._named, self._steps = not teaches, named, 0

    def apply(self, event: Event) -> str | None:
        """Fold one event in, and return a sentence if it is news."""
        if not self._is_on or not isinstance(event, BatchSealed) or not event.raw_rewards:
            return None
        self._steps = 0 if any(event.raw_rewards) else self._steps + 1
        if self._steps != STEPS:
            return None
        self._is_on = False
        return (
            f"every reward of the last {STEPS} steps is 0, so the model learns nothing: list the samples with "
            f"`slime-events show {self._named} --step {event.step}`, and compare answer and label with `--sample NAME`"
        )
