"""`BuiltInChange`: a change by our own graders, filters and estimators, for a page that must not run a user's code."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.analysis.rescore.change import Change, make_change
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.filters.dynamic_sampling import FILTERS
from slime_events.plugins.loader import name_of
from slime_events.plugins.rewards.registry import GRADERS
from slime_events.plugins.slime.modules import SLIME_PATHS

REWARDS = tuple(GRADERS)
FILTER_NAMES = tuple(FILTERS)
ESTIMATOR_NAMES = tuple(ESTIMATORS)


class BuiltInChange(msgspec.Struct, frozen=True, kw_only=True):
    """Names of ours; what is empty stays as in the run."""

    reward: Annotated[str, doc("grader, as --rm-type takes it; empty: the recorded rewards")] = ""
    filter: Annotated[str, doc("filter of groups; empty: that of the run")] = ""
    estimator: Annotated[str, doc("advantage estimator; empty: that of the run")] = ""

    @property
    def flags(self) -> list[str]:
        """Flags of `slime-events rescore` for this change. Raises InvalidValue for a name that we do not have."""
        flags: list[str] = []
        if self.reward:
            flags += ["--rm-type", _checked(self.reward, REWARDS, "grader")]
        if self.filter:
            name = _checked(self.filter, FILTER_NAMES, "filter")
            flags += ["--dynamic-sampling-filter-path", name_of(FILTERS[name])]
        if self.estimator:
            flags += ["--advantage-estimator", _checked(self.estimator, ESTIMATOR_NAMES, "advantage estimator")]
            flags += ["--normalize-advantages"] if ESTIMATORS[self.estimator].needs_whitening else []
        return flags

    def on(self, before: TrainSettings) -> Change:
        """Return the change of a run with these settings.

        Raises InvalidValue for an unknown name, without any name, if a function of the user's would have to run, and as
        `make_change`.
        """
        if not self.flags:
            raise InvalidValue("choose another reward, filter or advantage estimator")
        change = make_change(before, self.flags)
        if own := _own_code(change):
            raise InvalidValue(
                f"{own} is a function of yours, which a page does not run: use slime-events rescore, "
                "or for a filter choose another one"
            )
        return change


def _own_code(change: Change) -> str | None:
    """Return a function of the user's that the comparison would call."""
    ours = {name_of(function) for function in FILTERS.values()}
    path = change.after.rollout.dynamic_sampling_filter_path
    if path and SLIME_PATHS.get(path.strip(), path.strip()) not in ours:
        return path
    return change.before.reward.custom_reward_post_process_path or change.after.reward.custom_reward_post_process_path


def _checked(name: str, names: tuple[str, ...], kind: str) -> str:
    if name not in names:
        raise InvalidValue(f"no {kind} is called {name!r}. There are {', '.join(names)}")
    return name
