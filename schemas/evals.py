"""An evaluation: one data set, one weight version."""

from __future__ import annotations

from schemas.event import Event


class EvalCompleted(Event, frozen=True, kw_only=True, tag="eval.completed"):
    """The conductor, when every sample of an evaluation has its reward or failed.

    dataset: its name, as --eval-prompt-data gives it. mean: of the rewards, failed samples count 0. samples, failed:
    how many. mean_length: response tokens.
    oldest_version, newest_version: the weights that truly made the tokens (the loop is not held for an evaluation).
    """

    dataset: str
    version: int
    mean: float
    samples: int
    failed: int
    mean_length: float
    oldest_version: int
    newest_version: int

    def entity(self) -> str:
        return f"{self.dataset}-v{self.version}"
