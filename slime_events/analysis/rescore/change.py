"""`Change`: the settings that are asked to have been different; `write_change`: what would differ, as lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from schemas.errors import InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.fields import settings_fields
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.credit import CreditRule
from slime_events.core.run.run_settings import differences, flag_of
from slime_events.plugins.trainer_points import POST_PROCESS

MAY_CHANGE = {
    "reward": frozenset(field.name for field in settings_fields() if field.component == "reward"),
    "rollout": frozenset({"dynamic_sampling_filter_path"}),
    "agents": frozenset({"agent_credit", "agent_turn_discount"}),
    "algorithm": frozenset(
        {
            "advantage_estimator",
            "gamma",
            "normalize_advantages",
            "rewards_normalization",
            "grpo_std_normalization",
            "calculate_per_token_loss",
        }
    ),
}
"""Settings that decide about rollouts which exist already."""


@dataclass(frozen=True, slots=True)
class Change:
    """The run's settings and the changed ones. regrade: samples are graded again. recredit: the credit rule is applied
    to the sessions of agents again.
    """

    before: TrainSettings
    after: TrainSettings
    regrade: bool
    recredit: bool = False

    @property
    def rule(self) -> CreditRule:
        """The credit rule that is asked about."""
        return CreditRule.of_settings(self.after.agents)

    @property
    def texts(self) -> list[str]:
        """For each changed setting `name before -> after`."""
        return [f"{field} {_text(old)} -> {_text(new)}" for _, field, old, new in differences(self.before, self.after)]


def make_change(before: TrainSettings, flags: Sequence[str] = ()) -> Change:
    """A change by the run's own flags; what is not given stays.

    Sessions are credited again where a flag of the credit rule is given, or no flag at all. Samples are graded again
    where a flag of the reward is given (even the same one: its source may have changed), or where no flag is given.
    Raises InvalidValue for a setting whose effect recorded rollouts cannot show, and as `parse_train` does.
    """
    recorded = to_toml(before)
    before, after = (
        parse_train(["--config", "the run's settings", *given], read=lambda _: recorded).settings
        for given in ((), flags)
    )
    changed = differences(before, after)
    if path := before.algorithm.advantages_by:
        raise InvalidValue(
            f"the advantages of this run were made by {path} in the trainer: to try others train a branch"
        )
    if path := before.rollout.custom_convert_samples_to_train_data_path:
        raise InvalidValue(f"the rewards that this run trained on were made by {path}: to try others train a branch")
    if not before.algorithm.compute_advantages_and_returns:
        raise InvalidValue("this run was trained without advantages, so that no reward had a part in it")
    wrong = [flag_of(field) for component, field, _, _ in changed if field not in MAY_CHANGE.get(component, ())]
    if wrong:
        allowed = ", ".join(flag_of(field) for fields in MAY_CHANGE.values() for field in sorted(fields))
        raise InvalidValue(
            f"{', '.join(wrong)}: recorded rollouts cannot say what it would have changed. Rescoring takes {allowed}; "
            "for other settings train a branch: slime-events branch"
        )
    graders = (f for f in settings_fields() if f.component == "reward" and f.name != POST_PROCESS.field)
    own = {flag for f in graders for flag in (f.flag, f.negative)}
    given = {flag.partition("=")[0] for flag in flags}
    credit = {f.flag for f in settings_fields() if f.name in MAY_CHANGE["agents"]}
    if given & credit and not before.rollout.agents:
        raise InvalidValue("the rollouts of this run were not made by agents: no credit rule had a part in them")
    recredit = before.rollout.agents and (not flags or bool(given & credit))
    return Change(before, after, not flags or bool(given & own), recredit)


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


class SampleChange(msgspec.Struct, frozen=True):
    """A sample that is graded differently. reward: before normalisation."""

    sample: str
    reward: float


class GroupChange(msgspec.Struct, frozen=True):
    """A group whose verdict flips."""

    group: str
    accept: bool
    reason: str | None


class RuleChange(msgspec.Struct, frozen=True):
    """The credit rule, where it makes a difference."""

    credit: str
    discount: float


def write_change(file: IO[bytes] | None, change: SampleChange | GroupChange | RuleChange) -> None:
    """One line of an open file; None writes nowhere."""
    if file is not None:
        file.write(msgspec.json.encode(change) + b"\n")
