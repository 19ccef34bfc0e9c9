"""Half of a run alone, and rollouts in and out of files."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slime_events.core.config.base import Settings


class DebugSettings(Settings, frozen=True, kw_only=True):
    """slime's debug flags. Dumps are slime's: torch files of plain values, one a step."""

    debug_rollout_only: Annotated[
        bool, Meta(description="no trainer: every step is sealed and committed with the weights as they are")
    ] = False
    debug_train_only: Annotated[
        bool, Meta(description="no engines and no graders: rollouts come from load-debug-rollout-data")
    ] = False
    load_debug_rollout_data: Annotated[
        str | None, Meta(description="train on dumps, a path with {rollout_id}; sets debug-train-only")
    ] = None
    load_debug_rollout_data_subsample: Annotated[
        float | None,
        Meta(description="part of a dump's groups that is loaded, its first and its last ones; a step is what is left"),
    ] = None
    save_debug_rollout_data: Annotated[
        str | None, Meta(description="a dump of each step as it is sealed, a path with {rollout_id}")
    ] = None
    save_debug_train_data: Annotated[
        str | None, Meta(description="a dump of what the trainer made of each step, a path with {rollout_id}")
    ] = None
    dump_details: Annotated[
        str | None,
        Meta(
            description="folder for dumps: rollout_data/ in it is for save-debug-rollout-data, train_data/ for "
            "save-debug-train-data"
        ),
    ] = None
