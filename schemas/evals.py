"""An evaluation: one data set, one weight version."""

from collections.abc import Mapping
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event
from schemas.ids import evaluation_id


class EvalCompleted(Event, frozen=True, kw_only=True, tag="eval.completed"):
    """Appended by the conductor when each sample of an evaluation has its reward or has failed.

    If a user's evaluation function made the evaluation, its process appends the event, and the log holds no rollouts of
    the evaluation except the generations that the function requested from engines.
    """

    dataset: Annotated[str, doc("Name of the data set, from --eval-prompt-data or --eval-config.")]
    version: Annotated[int, doc("Weight version that is evaluated.")]
    mean: Annotated[float, doc("Mean reward; failed samples count as 0.")]
    samples: Annotated[int, doc("Number of samples.")]
    failed: Annotated[int, doc("Number of failed samples.")]
    mean_length: Annotated[float, doc("Mean response length, in tokens.")]
    oldest_version: Annotated[
        int, doc("Oldest weight version that generated a token; equal to `version` unless --eval-on is latest.")
    ]
    newest_version: Annotated[
        int, doc("Newest weight version that generated a token; equal to `version` unless --eval-on is latest.")
    ]
    pass_rates: Annotated[
        dict[str, float],
        doc(
            "Unbiased estimates of `pass@1`, `pass@2`, `pass@4`, ... up to the samples per question, if there are at "
            "least two. A reward of exactly 1 is a pass. Empty in older logs."
        ),
    ] = {}
    log_function: Annotated[str, doc("User's function that logged the evaluation, as in `batch.sealed`.")] = ""
    functions: Annotated[dict[str, str], doc("User's functions, as in `batch.sealed`.")] = {}
    function: Annotated[str, doc("User's evaluation function that made the evaluation; empty if there is none.")] = ""
    rewards: Annotated[tuple[float, ...], doc("Rewards that `function` returned, in its order.")] = ()
    truncated: Annotated[tuple[bool, ...], doc("Truncation flags that `function` returned, in its order.")] = ()

    @property
    def other_versions(self) -> str:
        """The versions that generated the answers, as `v20 to v21`; empty if `version` alone did."""
        if self.oldest_version == self.newest_version == self.version:
            return ""
        return f"v{self.oldest_version} to v{self.newest_version}"

    def entity(self) -> str:
        return evaluation_id(self.dataset, self.version)


def rates_text(rates: Mapping[str, float]) -> str:
    """Return pass rates as `pass@1 0.500  pass@4 0.875`."""
    return "  ".join(f"{k} {rate:.3f}" for k, rate in rates.items())
