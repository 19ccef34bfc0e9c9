"""`GenerateSetup`: what a replica needs to run a user's generate function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from serve_apps.generate.function import GenerateFunction
from serve_apps.generate.slime_compat import ROUTER
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView


class GenerateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """path: of the function. user_dir: the folder that it is looked for in. timeout_s: seconds that one rollout's
    function may take. args: what it sees on `args`. tokenizer: an HF folder.
    """

    path: str
    user_dir: str
    timeout_s: float
    args: dict[str, Any]
    tokenizer: str


def generate_setup(settings: TrainSettings) -> GenerateSetup | None:
    """What the settings ask for; None where engines answer each prompt in one turn, without a function.

    Raises PlugPointError and its kinds.
    """
    path = settings.rollout.custom_generate_function_path
    if path is None:
        return None
    GenerateFunction(path, Path.cwd())  # so that one that cannot be used ends the run before anything heavy starts
    view = ArgsView.of(
        settings.data,
        settings.evaluation,
        settings.trainer,
        settings.engine,
        settings.algorithm,
        settings.reward,
        settings.rollout,
    )
    return GenerateSetup(
        path=path,
        user_dir=str(Path.cwd()),
        timeout_s=settings.rollout.generate_timeout,
        args=view.as_dict() | ROUTER,
        tokenizer=settings.engine.hf_checkpoint,
    )
