"""What settings say of themselves."""

from __future__ import annotations

import msgspec
import pytest

from slime_events.core.config.settings import TrainSettings


@pytest.mark.parametrize(
    ("part", "name", "value", "names"),
    [
        ("rollout", "rollout_batch_size", 8, False),
        ("rollout", "rollout_sample_hook_path", ["hooks:see"], True),
        ("rollout", "dynamic_sampling_filter_path", "filters:keep", True),
        ("data", "data_source_path", "mine:Source", True),
        ("trainer", "custom_model_provider_path", "mine:provider", True),
    ],
)
def test_whether_code_of_the_users_takes_part(part: str, name: str, value: object, names: bool) -> None:
    settings = TrainSettings()
    assert not settings.names_functions
    changed = msgspec.structs.replace(getattr(settings, part), **{name: value})
    assert msgspec.structs.replace(settings, **{part: changed}).names_functions is names
