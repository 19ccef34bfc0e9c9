"""`POINTS`: the places where the trainer and the sealing of batches call a user's function, with slime's signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NoReturn

from schemas.doc import doc
from schemas.errors import PlugPointError, SlimeEventsError
from schemas.text import raised_text, repr_text
from slime_events.core.config.base import Settings
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import accepted, check_call, count_taken, digest_of, load_function, name_of, place_of


@dataclass(frozen=True, slots=True)
class PlugPoint:
    """A place where a user's function is called."""

    component: Annotated[str, doc("Settings component of the field.")]
    field: Annotated[str, doc("Setting that names the function.")]
    takes: Annotated[str, doc("Its arguments, in words.")]
    positional: Annotated[int, doc("Number of positional arguments.")]
    names: Annotated[tuple[str, ...], doc("Keyword arguments.")] = ()
    also: Annotated[tuple[int, ...], doc("Other accepted numbers of positional arguments.")] = ()

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    def check(self, path: str) -> None:
        """Raise PlugPointError, PlugPointMissing or NameTaken if the function at `path` cannot be called here."""
        self.count(load_function(path))

    def count(self, function: Callable[..., Any]) -> int:
        """Return the number of positional arguments to call a function with. Raises PlugPointError."""
        if self.also:
            return count_taken(function, self.takes, (self.positional, *self.also))
        check_call(function, self.takes, self.positional, self.names)
        return self.positional


CORRECTED = ("pg_loss", "train_log_probs", "rollout_log_probs", "loss_masks", "total_lengths", "response_lengths")
LOSS = PlugPoint("algorithm", "custom_loss_function_path", "(args, batch, logits, sum_of_sample_mean)", 4)
ADVANTAGE = PlugPoint("algorithm", "custom_advantage_function_path", "(args, rollout_data)", 2)
DATA = PlugPoint("algorithm", "rollout_data_postprocess_path", "(args, rollout_id, rollout_data)", 3, also=(2,))
TIS = PlugPoint("algorithm", "custom_tis_function_path", f"(args, *, {', '.join(CORRECTED)})", 1, CORRECTED)
REDUCER = PlugPoint(
    "algorithm",
    "custom_pg_loss_reducer_function_path",
    "(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)",
    4,
)
POST_PROCESS = PlugPoint("reward", "custom_reward_post_process_path", "(args, samples)", 2)
INIT = PlugPoint("trainer", "custom_megatron_init_path", "(args)", 1)
MODEL = PlugPoint(
    "trainer",
    "custom_model_provider_path",
    "(pre_process, post_process, vp_stage=None)",
    0,
    ("pre_process", "post_process"),
)
BEFORE_LOG_PROB = PlugPoint("trainer", "custom_megatron_before_log_prob_hook_path", "(args, model, store_prefix)", 3)
BEFORE_TRAIN_STEP = PlugPoint(
    "trainer",
    "custom_megatron_before_train_step_hook_path",
    "(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)",
    6,
)
WRITTEN = PlugPoint("trainer", "custom_update_weight_post_write_path", "(args, version_dir, rollout_engines)", 3)
POINTS = (LOSS, ADVANTAGE, DATA, TIS, REDUCER, POST_PROCESS, INIT, MODEL, BEFORE_LOG_PROB, BEFORE_TRAIN_STEP, WRITTEN)
IN_RANKS = tuple(point for point in POINTS if point is not POST_PROCESS)
"""Points that the trainer's ranks call."""
IN_STEPS = tuple(point for point in IN_RANKS if point is not WRITTEN)
"""Points that a step's result depends on."""

OF_SAMPLES = (LOSS, ADVANTAGE, DATA, TIS, REDUCER)
"""Points whose functions get whole samples on each rank, also if the model has parts of them."""
Around = Callable[[], AbstractContextManager[object]]


def rank_args(settings: TrainSettings) -> dict[str, Any]:
    """Return the `args` of functions in the trainer's ranks: the settings under slime's names, and Megatron's."""
    return settings.trainer.megatron | ArgsView.of_run(settings).as_dict()


def points_in_use(settings: TrainSettings) -> Iterator[tuple[PlugPoint, str]]:
    """Yield each point that the settings name a function for, and the function's path."""
    for point in POINTS:
        if path := getattr(getattr(settings, point.component), point.field):
            yield point, path


class UserFunction:
    """A user's function at a plug point. `digest` is that of its source; `positional` the number of its arguments."""

    def __init__(self, point: PlugPoint, path: str, around: Around = nullcontext) -> None:
        """around: returns a context in which the function is called. Raises the errors of `load_function`."""
        self._point, self._function, self._around = point, load_function(path), around
        self.positional = point.count(self._function) if point.also else point.positional
        self.name, self.digest = name_of(self._function), digest_of(self._function)

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Return the function's result. Raises PlugPointError if the function raises.

        A function that a reducer returns is called as the reducer is.
        """
        result = self._run(self._function, *arguments, **named)
        return partial(self._run, result) if self._point is REDUCER and callable(result) else result

    def _run(self, function: Callable[..., Any], *arguments: object, **named: object) -> Any:
        try:
            with self._around():
                return function(*arguments, **named)
        except SlimeEventsError:
            raise
        except BaseException as error:  # SystemExit too: the run fails and names the function
            raise PlugPointError(f"{self} raised {raised_text(error)}{place_of(error)}") from error

    def accepts(self, name: str) -> bool:
        """Return whether the function takes an argument of this name."""
        return bool(accepted(self._function, [name]))

    def refuse(self, returned: object, expected: str) -> PlugPointError:
        """Return the error for a bad result. `expected` describes a good one."""
        return PlugPointError(
            f"{self} returned {type(returned).__name__} {repr_text(returned, 200)}: it must return {expected}"
        )

    def __str__(self) -> str:
        return f"{self._point.flag} {self.name}"


class RunEngines(Sequence[Any]):
    """The `rollout_engines` argument of a function that sees written weights. Every access raises PlugPointError."""

    def __getitem__(self, index: object) -> NoReturn:
        raise PlugPointError(
            "rollout_engines: there is no engine to call: engines load each version themselves once it is published"
        )

    def __len__(self) -> int:
        return self[0]


class TrainerFunctions:
    """The functions that a rank calls. `args` is their `args`."""

    def __init__(self, args: object, *settings: Settings, whole: Around = nullcontext) -> None:
        """whole: context for functions at `OF_SAMPLES`. Raises the errors of `load_function`."""
        self.args = args
        self._by_point: dict[PlugPoint, UserFunction] = {}
        for point in IN_RANKS:
            for component in settings:
                if path := getattr(component, point.field, None):
                    around = whole if point in OF_SAMPLES else nullcontext
                    self._by_point[point] = UserFunction(point, path, around)

    def at(self, point: PlugPoint) -> UserFunction | None:
        """Return the function at a point; None if the settings name none."""
        return self._by_point.get(point)

    def notify(self, point: PlugPoint, *arguments: object) -> None:
        """Call the hook at a point, if there is one, with `args` and `arguments`."""
        if hook := self.at(point):
            hook(self.args, *arguments)

    def digests(self, *points: PlugPoint) -> dict[str, str]:
        """Return the sha256 (hex) of the source of each function at these points, by setting."""
        return {point.field: function.digest for point, function in self._by_point.items() if point in points}
