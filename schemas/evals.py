"""An evaluation: one data set, one weight version."""

from schemas.event import Event
from schemas.ids import evaluation_id


class EvalCompleted(Event, frozen=True, kw_only=True, tag="eval.completed"):
    """The conductor, when every sample of an evaluation has its reward or failed.

    dataset: its name, as --eval-prompt-data gives it. mean: of the rewards, failed samples count 0. samples, failed:
    how many. mean_length: response tokens.
    oldest_version, newest_version: the weights that made the tokens: `version` alone, but with --eval-on latest and in
    runs of before there was a choice.
    log_function, functions: as in `batch.sealed`.
    """

    dataset: str
    version: int
    mean: float
    samples: int
    failed: int
    mean_length: float
    oldest_version: int
    newest_version: int
    log_function: str = ""
    functions: dict[str, str] = {}

    @property
    def other_versions(self) -> str:
        """Which made its answers, as `v20 to v21`, where they are not its own alone; else nothing."""
        if self.oldest_version == self.newest_version == self.version:
            return ""
        return f"v{self.oldest_version} to v{self.newest_version}"

    def entity(self) -> str:
        return evaluation_id(self.dataset, self.version)
