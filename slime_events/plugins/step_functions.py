"""`StepFunctions`: a user's functions that are called with all samples of a step, with slime's signatures."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from schemas.errors import PlugPointError
from schemas.text import message_text, raised_text
from slime_events.core.config.rollout import RolloutSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import count_taken, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.train_data import TrainData, read_train_data

Group = list[Sample | list[Sample]]
"""Rollouts of a group. A rollout that became several samples is a list of them."""

POINTS = {
    "rollout_sample_filter_path": ("(args, groups)", (2,)),
    "rollout_all_samples_process_path": ("(args, all_groups, data_source)", (3,)),
    "custom_rollout_log_function_path": ("(rollout_id, args, samples, extra_metrics, rollout_time)", (5,)),
    "custom_convert_samples_to_train_data_path": ("(args, samples)", (2, 4)),
    "custom_eval_rollout_log_function_path": ("(rollout_id, args, data, extra_metrics)", (4,)),
}
"""Setting to its function's arguments: in words, and the accepted numbers of positional arguments."""
FILTER, PROCESS, LOG, CONVERT, EVAL_LOG = POINTS
OF_BATCHES = (FILTER, PROCESS, LOG, CONVERT)
"""Settings of functions that run before a batch is sealed, in the order of the calls."""
_INSTEAD = {
    FILTER: "it may set only `remove_sample`: choose groups with --dynamic-sampling-filter-path, change samples with "
    "--rollout-sample-hook-path",
    PROCESS: "it may change nothing: change samples with --rollout-sample-hook-path, leave them out with "
    "--rollout-sample-filter-path",
}
"""Advice if a function changes more than it may."""


class StepFunction:
    """A user's function. `name` and `digest` are for events. `positional` is the number of its arguments."""

    def __init__(self, setting: str, path: str) -> None:
        """Raises PlugPointMissing, NameTaken, or PlugPointError if it cannot be called with slime's arguments."""
        self.setting, self.flag = setting, "--" + setting.replace("_", "-")
        self._function = load_function(path)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self.positional = count_taken(self._function, *POINTS[setting])

    def __call__(self, *arguments: object) -> object:
        """Return the function's result. Raises PlugPointError with the line if the function raises."""
        try:
            return self._function(*arguments)
        except BaseException as error:  # SystemExit too: the run fails and names the function
            raise PlugPointError(f"{self.flag}: {self.name} raised {raised_text(error)}{place_of(error)}") from error

    def is_true(self, returned: object) -> bool:
        """Return the truth value of a result. Raises PlugPointError if the object has none."""
        try:
            return bool(returned)
        except BaseException as error:  # a user's object may raise anything when it is read
            what = f"returned an object without a truth value: {raised_text(error)}"
            raise PlugPointError(f"{self.flag}: {self.name} {what}") from error


class RunDataSource:
    """The `data_source` argument of --rollout-all-samples-process-path. The log decides what a run draws."""

    def get_samples(self, num_samples: int) -> NoReturn:
        """Raises PlugPointError."""
        raise PlugPointError("data_source.get_samples: only the run draws prompts")

    def add_samples(self, samples: object) -> NoReturn:
        """Raises PlugPointError."""
        raise PlugPointError(
            "data_source.add_samples: send prompts to the run with `slime-events produce`, or draw those of an archive "
            "again with --archive-prompts"
        )


class StepFunctions:
    """The functions that the settings name. `shown` builds their `args` anew for each call."""

    def __init__(self, settings: RolloutSettings, shown: Callable[[], ArgsView]) -> None:
        """Raises the errors of `StepFunction`."""
        self._shown = shown
        paths = {setting: getattr(settings, setting) for setting in POINTS}
        self.by_setting = {setting: StepFunction(setting, path) for setting, path in paths.items() if path}

    def code(self, *settings: str) -> dict[str, str]:
        """Return the function name of each setting that is set, with the sha256 (hex) of its source."""
        used = [self.by_setting[setting] for setting in settings if setting in self.by_setting]
        return {function.name: function.digest for function in used}

    def look(self, kept: list[Group], all_groups: list[Group]) -> None:
        """Let the filter set `remove_sample` on samples of the kept groups. Then show all groups to the other function.

        Raises PlugPointError if one of them raises, or changes what it may not change.
        """
        self._call(FILTER, kept, kept)
        self._call(PROCESS, all_groups, all_groups, RunDataSource())

    def _call(self, setting: str, groups: list[Group], *arguments: object) -> None:
        function = self.by_setting.get(setting)
        if function is None:
            return
        may_change = {"remove_sample"} if setting == FILTER else set()
        before = [(sample, _content(sample, may_change)) for sample in flat(groups)]
        function(self._shown(), *arguments)
        changed = [name for sample, was in before for name, value in _content(sample, may_change).items()
                   if was.get(name) != value]  # fmt: skip
        if changed or [id(sample) for sample in flat(groups)] != [id(sample) for sample, _ in before]:
            what = f"`{changed[0]}` of samples" if changed else "the list of samples"
            raise PlugPointError(f"{function.flag}: {function.name} changed {what}, but {_INSTEAD[setting]}")

    def logs(self, step: int, kept: list[Group], metrics: dict[str, Any], seconds: float) -> bool:
        """Return whether the user's function logged the step, so that the usual metrics are not logged."""
        function = self.by_setting.get(LOG)
        return function is not None and function.is_true(function(step, self._shown(), flat(kept), metrics, seconds))

    def convert(self, kept: list[Group], raw_rewards: tuple[float, ...], rewards: tuple[float, ...]) -> TrainData:
        """Return the columns that the user's function makes of the samples. Raises PlugPointError.

        `raw_rewards` and `rewards` are the batch's so far. A function with four arguments gets them, as in older slime.
        """
        function, samples = self.by_setting[CONVERT], flat(kept)
        more = (list(raw_rewards), list(rewards)) if function.positional == 4 else ()
        returned = function(self._shown(), list(samples), *more)
        try:
            return read_train_data(returned, samples, raw_rewards, rewards)
        except ValueError as error:
            raise PlugPointError(f"{function.flag}: {function.name} must return {message_text(error)}") from None
        except BaseException as error:  # a user's object may raise anything when it is read
            what = f"returned an unreadable object: {raised_text(error)}"
            raise PlugPointError(f"{function.flag}: {function.name} {what}") from error

    def logs_evaluation(self, version: int, dataset: str, groups: list[Group]) -> bool:
        """Return whether the user's function logged the evaluation of one data set."""
        function = self.by_setting.get(EVAL_LOG)
        if function is None:
            return False
        shown, samples = self._shown(), flat(groups)
        data = {
            "rewards": [sample.get_reward_value(shown) for sample in samples],
            "truncated": [sample.status is Sample.Status.TRUNCATED for sample in samples],
            "samples": samples,
        }
        return function.is_true(function(version, shown, {dataset: data}, None))


def flat(groups: Sequence[Group]) -> list[Sample]:
    """Return all samples, in order."""
    return [sample for group in groups for item in group for sample in (item if isinstance(item, list) else [item])]


def _content(sample: Sample, without: set[str]) -> dict[str, Any]:
    """Return a copy of the sample's fields."""
    fields = {name: value for name, value in vars(sample).items() if name not in without}
    return {name: value.copy() if isinstance(value, list | dict) else value for name, value in fields.items()}
