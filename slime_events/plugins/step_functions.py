"""`StepFunctions`: the user's functions that are called with all samples of a step, with slime's signatures."""

from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import PlugPointError
from schemas.text import message_text, raised_text
from slime_events.core.config.rollout import RolloutSettings
from slime_events.plugins.loader import count_taken, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.train_data import TrainData, read_train_data

Group = list[Sample | list[Sample]]
"""A group's rollouts; one that became several samples is a list of them."""

POINTS = {
    "rollout_sample_filter_path": ("(args, groups)", (2,)),
    "rollout_all_samples_process_path": ("(args, all_groups, data_source)", (3,)),
    "custom_rollout_log_function_path": ("(rollout_id, args, samples, extra_metrics, rollout_time)", (5,)),
    "custom_convert_samples_to_train_data_path": ("(args, samples)", (2, 4)),
    "custom_eval_rollout_log_function_path": ("(rollout_id, args, data, extra_metrics)", (4,)),
}
"""Setting to how its function is called, in words and in numbers that will do."""
FILTER, PROCESS, LOG, CONVERT, EVAL_LOG = POINTS
OF_BATCHES = (FILTER, PROCESS, LOG, CONVERT)
"""Called in this order before a batch is sealed."""
_INSTEAD = {
    FILTER: "only `remove_sample` counts: groups are chosen by --dynamic-sampling-filter-path, samples changed by "
    "--rollout-sample-hook-path",
    PROCESS: "it only looks: samples are changed by --rollout-sample-hook-path, and left out by "
    "--rollout-sample-filter-path",
}


class StepFunction:
    """One of them. name, digest: for events. positional: arguments that it is called with."""

    def __init__(self, setting: str, path: str) -> None:
        """Raises PlugPointMissing, NameTaken, PlugPointError where it cannot be called as it is."""
        self.setting, self.flag = setting, "--" + setting.replace("_", "-")
        self._function = load_function(path)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self.positional = count_taken(self._function, *POINTS[setting])

    def __call__(self, *arguments: Any) -> Any:
        """What it returns. Raises PlugPointError with its line where it raises."""
        try:
            return self._function(*arguments)
        except BaseException as error:  # SystemExit too: the run fails, and says by whose function
            raise PlugPointError(f"{self.flag}: {self.name} raised {raised_text(error)}{place_of(error)}") from error

    def is_true(self, returned: Any) -> bool:
        """Whether what it returned counts as true. Raises PlugPointError for an object that does not say."""
        try:
            return bool(returned)
        except BaseException as error:
            what = f"returned what is neither true nor false: {raised_text(error)}"
            raise PlugPointError(f"{self.flag}: {self.name} {what}") from error


class RunDataSource:
    """The data source of --rollout-all-samples-process-path. What a run draws follows from its log."""

    def get_samples(self, num_samples: int) -> Any:
        """Refused."""
        raise PlugPointError("data_source.get_samples: prompts are drawn by the run alone")

    def add_samples(self, samples: Any) -> None:
        """Refused."""
        raise PlugPointError(
            "data_source.add_samples: send prompts to the run with `slime-events produce`, or draw those of an archive "
            "again with --archive-prompts"
        )


class StepFunctions:
    """Those that the settings name. shown: their `args`, made anew for each call."""

    def __init__(self, settings: RolloutSettings, shown: Callable[[], Any]) -> None:
        """Raises what `StepFunction` raises."""
        self._shown = shown
        paths = {setting: getattr(settings, setting) for setting in POINTS}
        self.by_setting = {setting: StepFunction(setting, path) for setting, path in paths.items() if path}

    def code(self, *settings: str) -> dict[str, str]:
        """Names of those of these that there are, and the sha256 (hex) of their sources."""
        used = [self.by_setting[setting] for setting in settings if setting in self.by_setting]
        return {one.name: one.digest for one in used}

    def look(self, kept: list[Group], all_groups: list[Group]) -> None:
        """The filter sets `remove_sample` on samples of those that are kept. Then the other function sees all.

        Raises PlugPointError where one of them raises, or changes what it cannot.
        """
        self._call(FILTER, kept, kept)
        self._call(PROCESS, all_groups, all_groups, RunDataSource())

    def _call(self, setting: str, groups: list[Group], *arguments: Any) -> None:
        function = self.by_setting.get(setting)
        if function is None:
            return
        may_change = {"remove_sample"} if setting == FILTER else set()
        before = [(sample, _content(sample, may_change)) for sample in flat(groups)]
        function(self._shown(), *arguments)
        changed = [name for sample, was in before for name, value in _content(sample, may_change).items()
                   if was.get(name) != value]  # fmt: skip
        if changed or [id(one) for one in flat(groups)] != [id(sample) for sample, _ in before]:
            what = f"`{changed[0]}` of samples" if changed else "which samples there are"
            raise PlugPointError(f"{function.flag}: {function.name} changed {what}, and {_INSTEAD[setting]}")

    def logs(self, step: int, kept: list[Group], metrics: dict[str, Any], seconds: float) -> bool:
        """Whether the user's function logged the step in the place of the usual metrics."""
        function = self.by_setting.get(LOG)
        return function is not None and function.is_true(function(step, self._shown(), flat(kept), metrics, seconds))

    def convert(self, kept: list[Group], raw_rewards: tuple[float, ...], rewards: tuple[float, ...]) -> TrainData:
        """What the user's function makes of the samples. raw_rewards, rewards: the batch's so far, which a function of
        four arguments is given as slime once did. Raises PlugPointError.
        """
        function, samples = self.by_setting[CONVERT], flat(kept)
        made = (list(raw_rewards), list(rewards)) if function.positional == 4 else ()
        returned = function(self._shown(), list(samples), *made)
        try:
            return read_train_data(returned, samples, raw_rewards, rewards)
        except ValueError as error:
            raise PlugPointError(f"{function.flag}: {function.name} has to give {message_text(error)}") from None
        except BaseException as error:
            what = f"returned what cannot be read: {raised_text(error)}"
            raise PlugPointError(f"{function.flag}: {function.name} {what}") from error

    def logs_evaluation(self, version: int, dataset: str, groups: list[Group]) -> bool:
        """The same for an evaluation of one data set."""
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
    """All samples, in order."""
    return [sample for group in groups for one in group for sample in (one if isinstance(one, list) else [one])]


def _content(sample: Sample, without: set[str]) -> dict[str, Any]:
    """A sample's fields as they are now."""
    fields = {name: value for name, value in vars(sample).items() if name not in without}
    return {name: value.copy() if isinstance(value, list | dict) else value for name, value in fields.items()}
