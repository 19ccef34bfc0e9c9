"""An evaluation: one data set, one weight version."""

from collections.abc import Mapping

from schemas.event import Event
from schemas.ids import evaluation_id


class EvalCompleted(Event, frozen=True, kw_only=True, tag="eval.completed"):
    """The conductor, when every sample of an evaluation has its reward or failed.

    dataset: its name, as --eval-prompt-data or --eval-config gives it. mean: of the rewards, failed samples count 0.
    samples, failed: how many. mean_length: response tokens.
    pass_rates: `pass@1`, `pass@2`, `pass@4`, ... up to the answers to a question, where there are two or more: the
    chance that one of so many is right, by the unbiased estimate over those there are. A right answer has a reward of
    exactly 1. Empty in evaluations of before this field.
    oldest_version, newest_version: the weights that made the tokens: `version` alone, but with --eval-on latest and in
    runs of before there was a choice.
    log_function, functions: as in `batch.sealed`.

    function: the user's evaluation function that made it, whose process appends it then; its source's digest is in
    functions. rewards, truncated: as it gave them, in order. There are no rollouts of such an evaluation in the log but
    the generations that the function asked the engines for.
    """

    dataset: str
    version: int
    mean: float
    samples: int
    failed: int
    mean_length: float
    oldest_version: int
    newest_version: int
    pass_rates: dict[str, float] = {}
    log_function: str = ""
    functions: dict[str, str] = {}
    function: str = ""
    rewards: tuple[float, ...] = ()
    truncated: tuple[bool, ...] = ()

    @property
    def other_versions(self) -> str:
        """Which made its answers, as `v20 to v21`, where they are not its own alone; else nothing."""
        if self.oldest_version == self.newest_version == self.version:
            return ""
        return f"v{self.oldest_version} to v{self.newest_version}"

    def entity(self) -> str:
        return evaluation_id(self.dataset, self.version)


def rates_text(rates: Mapping[str, float]) -> str:
    """Pass rates as `pass@1 0.500  pass@4 0.875`."""
    return "  ".join(f"{k} {rate:.3f}" for k, rate in rates.items())
