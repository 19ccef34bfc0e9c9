"""`POINTS`: where the trainer and the sealing of batches call a user's own function, with slime's signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import PlugPointError, SlimeEventsError
from schemas.text import raised_text, repr_text
from slime_events.core.config.base import Settings
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import accepted, check_call, count_taken, digest_of, load_function, name_of, place_of


@dataclass(frozen=True, slots=True)
class PlugPoint:
    """component, field: the setting that names the function. takes: its arguments in words; `positional` of them come
    in order, and `names` by name. also: other numbers of positional arguments that it may take.
    """

    component: str
    field: str
    takes: str
    positional: int
    names: tuple[str, ...] = ()
    also: tuple[int, ...] = ()

    @property
    def flag(self) -> str:
        """The flag that names the function."""
        return "--" + self.field.replace("_", "-")

    def check(self, path: str) -> None:
        """Raises PlugPointError, PlugPointMissing or NameTaken where `path` names no function that can be called."""
        self.count(load_function(path))

    def count(self, function: Callable[..., Any]) -> int:
        """How many positional arguments a function is called with. Raises PlugPointError where it takes others."""
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
"""Called by the trainer's ranks."""
IN_STEPS = tuple(point for point in IN_RANKS if point is not WRITTEN)
"""Those that a step depends on."""


def rank_args(settings: TrainSettings) -> dict[str, Any]:
    """What functions in the trainer's ranks see as `args`: the settings under slime's names, Megatron's among them."""
    return settings.trainer.megatron | ArgsView.of_run(settings).as_dict()


def points_in_use(settings: TrainSettings) -> Iterator[tuple[PlugPoint, str]]:
    """Each point that the settings name a function for, and its path."""
    for point in POINTS:
        if path := getattr(getattr(settings, point.component), point.field):
            yield point, path


class UserFunction:
    """A user's function at a plug point. digest: of its source. positional: arguments that it is called with."""

    def __init__(self, point: PlugPoint, path: str) -> None:
        """Raises what `load_function` raises."""
        self._point, self._function = point, load_function(path)
        self.positional = point.count(self._function) if point.also else point.positional
        self.name, self.digest = name_of(self._function), digest_of(self._function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What it returns. Raises PlugPointError where it raises."""
        try:
            return self._function(*arguments, **named)
        except SlimeEventsError:
            raise
        except BaseException as error:  # SystemExit too: the run fails, and says by whose function
            raise PlugPointError(f"{self} raised {raised_text(error)}{place_of(error)}") from error

    def accepts(self, name: str) -> bool:
        """Whether it takes an argument of this name."""
        return bool(accepted(self._function, [name]))

    def refuse(self, returned: object, wanted: str) -> PlugPointError:
        """The error for what it gave. wanted: what it has to give, in words."""
        return PlugPointError(
            f"{self} gave {type(returned).__name__} {repr_text(returned, 200)}: it has to give {wanted}"
        )

    def __str__(self) -> str:
        return f"{self._point.flag} {self.name}"


class RunEngines(Sequence[Any]):
    """The `rollout_engines` of a function that sees written weights. Any look into it is refused."""

    def __getitem__(self, place: Any) -> Any:
        raise PlugPointError(
            "rollout_engines: engines load each version by themselves once it is published, so there is none to call"
        )

    def __len__(self) -> int:
        return self[0]  # type: ignore[no-any-return]


class TrainerFunctions:
    """Those that a rank calls; None where the settings name none. args: what they are given as `args`."""

    def __init__(self, args: Any, *settings: Settings) -> None:
        """Raises what `load_function` raises."""
        self.args = args
        self._by_point: dict[PlugPoint, UserFunction] = {}
        for point in IN_RANKS:
            for component in settings:
                if path := getattr(component, point.field, None):
                    self._by_point[point] = UserFunction(point, path)

    def at(self, point: PlugPoint) -> UserFunction | None:
        """The function at a point."""
        return self._by_point.get(point)

    def notify(self, point: PlugPoint, *arguments: Any) -> None:
        """Call the hook at a point, if there is one, with `args` and these."""
        if hook := self.at(point):
            hook(self.args, *arguments)

    def digests(self, *points: PlugPoint) -> dict[str, str]:
        """Of the source of each at these points, by the setting that names it."""
        return {point.field: one.digest for point, one in self._by_point.items() if point in points}
