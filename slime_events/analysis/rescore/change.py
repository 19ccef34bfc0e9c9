"""`Change`: settings that a run is compared under. `write_change`: what would differ, as lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Annotated

import msgspec
from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.algorithms.credit import CreditRule
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.fields import changeable, settings_fields, unchangeable
from slime_events.core.config.rules import Later
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_settings import differences
from slime_events.plugins.trainer_points import POST_PROCESS


@dataclass(frozen=True, slots=True)
class Change:
    """The run's settings and the changed ones."""

    before: Annotated[TrainSettings, doc("settings of the run")]
    after: Annotated[TrainSettings, doc("settings of the change")]
    regrade: Annotated[bool, doc("whether samples are graded again")]
    recredit: Annotated[bool, doc("whether the credit rule is applied again to agents' sessions")] = False

    @property
    def rule(self) -> CreditRule:
        """The credit rule of the change."""
        return CreditRule.of_settings(self.after.agents)

    @property
    def texts(self) -> list[str]:
        """The changed settings, each as `name before -> after`."""
        return [f"{field} {_text(old)} -> {_text(new)}" for _, field, old, new in differences(self.before, self.after)]


def make_change(before: TrainSettings, flags: Sequence[str] = ()) -> Change:
    """Return a change by the run's own flags. Settings without a flag stay.

    Sessions are credited again if a flag of the credit rule is set, or no flag at all. Samples are graded again if a
    flag of the reward is set (even to the same value: its source may have changed), or no flag at all. `--rm-type`
    replaces a function of the run's --custom-rm-path. Raises
    InvalidValue for a setting whose effect recorded rollouts cannot show, and the errors of `parse_train`.
    """
    recorded = to_toml(before)
    before, after = (
        parse_train(["--config", "the run's settings", *words], read=lambda _: recorded).settings
        for words in ((), flags)
    )
    set_flags = {flag.partition("=")[0] for flag in flags}
    if "--rm-type" in set_flags and "--custom-rm-path" not in set_flags:  # it would have no effect beside a function
        after = replace(after, reward=replace(after.reward, custom_rm_path=None))
    changed = differences(before, after)
    if path := before.algorithm.advantages_by:
        raise InvalidValue(f"the trainer of this run computed advantages by {path}. To try others, train a branch")
    if path := before.rollout.custom_convert_samples_to_train_data_path:
        raise InvalidValue(f"the rewards that this run trained on come from {path}. To try others, train a branch")
    if not before.algorithm.compute_advantages_and_returns:
        raise InvalidValue("this run was trained without advantages, so no reward had an effect")
    if wrong := unchangeable(((component, field) for component, field, _, _ in changed), Later.RESCORE):
        raise InvalidValue(
            f"{', '.join(wrong)}: recorded rollouts do not show its effect. Rescoring takes "
            f"{', '.join(changeable(Later.RESCORE))}. For other settings, train a branch with slime-events branch"
        )
    graders = (f for f in settings_fields() if f.component == "reward" and f.name != POST_PROCESS.field)
    own = {flag for f in graders for flag in (f.flag, f.negative)}
    credit = {f.flag for f in settings_fields() if f.component == "agents" and Later.RESCORE & f.later}
    if set_flags & credit and not before.rollout.agents:
        raise InvalidValue("the rollouts of this run were not made by agents, so no credit rule applies to them")
    recredit = before.rollout.agents and (not flags or bool(set_flags & credit))
    return Change(before, after, not flags or bool(set_flags & own), recredit)


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


class SampleChange(msgspec.Struct, frozen=True):
    """A sample that is graded differently."""

    sample: Annotated[str, doc("id of the sample")]
    reward: Annotated[float, doc("reward before normalisation")]


class GroupChange(msgspec.Struct, frozen=True):
    """A group whose verdict flips."""

    group: Annotated[str, doc("id of the group")]
    accept: Annotated[bool, doc("whether it would be accepted")]
    reason: Annotated[str | None, doc("reason of the new verdict")]


class RuleChange(msgspec.Struct, frozen=True):
    """The credit rule, if it makes a difference."""

    credit: Annotated[str, doc("name of the rule")]
    discount: Annotated[float, doc("factor per turn, if it is `discounted`")]


def write_change(file: IO[bytes] | None, change: SampleChange | GroupChange | RuleChange) -> None:
    """Write one line to an open file; None: write nothing."""
    if file is not None:
        file.write(msgspec.json.encode(change) + b"\n")
