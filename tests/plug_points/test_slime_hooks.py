"""slime's rule of a dynamic filter's fallback, its sample hooks, and what a sample learns of a generation."""
# ruff: noqa: E402  there is no slime before its aliases are installed

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from slime_events.plugins.sample import Sample
from slime_events.plugins.slime.aliases import install_slime_aliases

install_slime_aliases()

from slime.rollout.filter_hub.base_types import DynamicFilterOutput, should_drop_dynamic_filter_output
from slime.rollout.sample_hooks import apply_rollout_sample_hooks, set_current_rollout_id
from slime.utils.async_utils import run


@pytest.mark.parametrize(
    ("keep", "fallback", "left", "drops"),
    [(True, False, 1, False), (False, False, 1, True), (False, True, 4, False), (False, True, 5, True)],
)
def test_a_group_goes_by_slime_s_rule(keep: bool, fallback: bool, left: int, drops: bool) -> None:
    output = DynamicFilterOutput(keep=keep, keep_when_insufficient=fallback)
    assert should_drop_dynamic_filter_output(output, remaining_batch_size=left, target_data_size=4) is drops


HOOKS = """
def told(args, sample, *, rollout_id=None):
    sample.metadata["told"] = (args.marker, rollout_id)


async def other(args, sample, *, evaluation=False):
    return Sample(index=sample.index, metadata=sample.metadata | {"evaluation": evaluation})


from slime.utils.types import Sample
"""


def test_hooks_are_applied_to_each_sample_of_nested_lists(tmp_path: Path) -> None:
    (tmp_path / "own_hooks.py").write_text(HOOKS)
    file = tmp_path / "own_hooks.py"
    args = SimpleNamespace(marker="m", rollout_sample_hook_path=[f"{file}:told", f"{file}:other"])
    set_current_rollout_id(7)
    hooked = run(apply_rollout_sample_hooks(args, [[Sample(index=0)], Sample(index=1)], evaluation=True, more="value"))
    assert [hooked[0][0].index, hooked[1].index] == [0, 1]
    assert hooked[0][0].metadata == hooked[1].metadata == {"told": ("m", 7), "evaluation": True}
    single = run(apply_rollout_sample_hooks(args, Sample(index=2), rollout_id=8))
    assert single.metadata == {"told": ("m", 8), "evaluation": False}
    with pytest.raises(TypeError):
        run(apply_rollout_sample_hooks(args, {}))
    assert run(apply_rollout_sample_hooks(SimpleNamespace(), {})) == {}


@pytest.mark.parametrize("algorithm", [None, "EAGLE"])
def test_a_sample_is_told_what_an_engine_counted(algorithm: str | None) -> None:
    sample, args = Sample(), SimpleNamespace(sglang_speculative_algorithm=algorithm)
    meta = {"weight_version": "3", "finish_reason": {"type": "length"}, "prompt_tokens": 9, "cached_tokens": 4}
    sample.update_from_meta_info(args, meta | {"completion_tokens": 5, "spec_verify_ct": 2})
    sample.update_from_meta_info(args, meta | {"finish_reason": {"type": "stop"}, "completion_tokens": 5})
    assert (sample.status, sample.weight_versions) == (Sample.Status.COMPLETED, ["3", "3"])
    assert (sample.prefix_cache_info.cached_tokens, sample.prefix_cache_info.total_prompt_tokens) == (8, 18)
    counted = (sample.spec_info.spec_verify_ct, sample.spec_info.completion_token_num)
    assert counted == ((2, 10) if algorithm else (0, 0))
