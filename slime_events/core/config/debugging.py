"""What slime's debug flags make of the other settings, and what they exclude."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from slime_events.core.config.base import Settings
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings

LOADED = "rollouts are loaded (load_debug_rollout_data)"
_GENERATION: dict[str, tuple[str, ...]] = {
    "data": (
        "prompt_data",
        "prompt_sampler",
        "data_source_path",
        "archive_prompts",
        "archive_where",
        "archive_reuse",
        "buffer_filter_path",
    ),
    "evaluation": ("eval_interval", "eval_prompt_data"),
    "rollout": (
        "over_sampling_batch_size",
        "dynamic_sampling_filter_path",
        "partial_rollout",
        "mask_offpolicy_in_partial_rollout",
        "custom_generate_function_path",
    ),
}
"""By component the settings that have no part in a run of loaded rollouts."""
_PLAIN: dict[str, Settings] = {"data": DataSettings(), "evaluation": EvalSettings(), "rollout": RolloutSettings()}


def derive_debug(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """The settings of the half that runs, and a sentence for what has no part in it."""
    debug, notes = settings.debug, list[str]()
    if debug.dump_details:
        folder = debug.dump_details.rstrip("/")
        debug = replace(
            debug,
            save_debug_rollout_data=debug.save_debug_rollout_data or f"{folder}/rollout_data/{{rollout_id}}.pt",
            save_debug_train_data=debug.save_debug_train_data or f"{folder}/train_data/{{rollout_id}}_{{rank}}.pt",
        )
    if debug.debug_rollout_only and debug.save_debug_train_data:
        notes.append("save_debug_train_data has no effect: nothing is trained (debug_rollout_only).")
    if debug.load_debug_rollout_data:
        debug = replace(debug, debug_train_only=True)
        settings, unused = _without_generation(settings)
        if unused:
            notes.append(f"{', '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect: {LOADED}.")
    if debug.debug_rollout_only and settings.rollout.num_rollout:
        # The weights stay as they are: they are published at the beginning and, as every run's last, at the end.
        trainer = replace(settings.trainer, update_weights_interval=settings.rollout.num_rollout, save_interval=None)
        settings = replace(settings, trainer=trainer)
    return replace(settings, debug=debug), notes


def _without_generation(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """What draws, makes or filters rollouts is as if it had not been set."""
    unused = []
    for group, names in _GENERATION.items():
        given = getattr(settings, group)
        plain = {name: getattr(_PLAIN[group], name) for name in names}
        unused += [name for name in names if getattr(given, name) != plain[name]]
        settings = replace(settings, **{group: replace(given, **plain)})
    return settings, [name for name in unused if name != "eval_prompt_data"]


def impossible_debug(settings: TrainSettings) -> Iterator[str]:
    """A sentence for each thing that cannot be."""
    debug = settings.debug
    if debug.debug_rollout_only and debug.debug_train_only:
        yield "debug_rollout_only and debug_train_only exclude each other: nothing would be left to run."
    if debug.debug_train_only and not debug.load_debug_rollout_data:
        yield "debug_train_only needs load_debug_rollout_data: without engines rollouts come from dumps."
    for name in ("save_debug_rollout_data", "save_debug_train_data"):
        if (template := getattr(debug, name)) and "{rollout_id}" not in template:
            yield f"{name} needs {{rollout_id}} in its path: each step has a file of its own."
    part = debug.load_debug_rollout_data_subsample
    if part is not None and not debug.load_debug_rollout_data:
        yield "load_debug_rollout_data_subsample needs load_debug_rollout_data: it is a part of those dumps."
    if part is not None and not 0 < part <= 1:
        yield f"load_debug_rollout_data_subsample is {part}, and should be a part: more than 0 and at most 1."
