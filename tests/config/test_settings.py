"""Test what a settings struct tells about itself."""

from __future__ import annotations

import msgspec
import pytest

from slime_events.core.config.fields import settings_fields
from slime_events.core.config.settings import RUN_ELSEWHERE, TrainSettings


@pytest.mark.parametrize(
    ("part", "name", "value", "runs"),
    [
        ("rollout", "rollout_batch_size", 8, False),
        ("rollout", "dynamic_sampling_filter_path", "filters:keep", True),
        ("rollout", "rollout_all_samples_process_path", "mine:look", True),
        ("rollout", "rollout_sample_hook_path", ["mine:see"], False),
        ("data", "data_source_path", "mine:Source", True),
        ("reward", "custom_reward_post_process_path", "mine:scale", True),
        ("reward", "custom_rm_path", "mine:reward", False),
        ("trainer", "custom_model_provider_path", "mine:provider", False),
    ],
)
def test_whose_functions_the_conductor_runs(part: str, name: str, value: object, runs: bool) -> None:
    settings = TrainSettings()
    assert not settings.conductor_runs_functions
    changed = msgspec.structs.replace(getattr(settings, part), **{name: value})
    assert msgspec.structs.replace(settings, **{part: changed}).conductor_runs_functions is runs


def test_what_runs_elsewhere_is_a_setting() -> None:
    assert {field.name for field in settings_fields()} >= RUN_ELSEWHERE
