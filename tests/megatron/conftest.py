"""One trainer rank per test process at a time, always torn down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import rendezvous_address
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.plugins.trainer_points import rank_args
from tests import made
from tests.megatron.tiny import make_model, settings_for
from tests.megatron.two_processes import RankPair

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tied Qwen3 checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    make_model(folder)
    return folder


@pytest.fixture(scope="package")
def rank_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPair]:
    """Two processes for all tests of two ranks in this folder, one module after another."""
    with RankPair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def trainer() -> Callable[..., Any]:
    """A context manager: one rank on the checkpoint, algorithm settings as a dict."""

    @contextmanager
    def build(folder: Path, algorithm: dict[str, Any] | None = None, **settings: Any) -> Iterator[TrainerRank]:
        chosen = AlgorithmSettings(**(algorithm or {}))
        trainer_settings = settings_for(folder, **settings)
        shown = rank_args(made.settings(trainer=trainer_settings, algorithm=chosen))
        rank = TrainerRank(trainer_settings, chosen, 0, 1, rendezvous_address(), shown)
        try:
            yield rank
        finally:
            rank.close()

    return build
