"""How prompts are drawn: settings that exclude each other or make no sense."""

from __future__ import annotations

from collections.abc import Iterator

from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.data import DataSettings


def impossible_recalls(data: DataSettings, algorithm: AlgorithmSettings) -> Iterator[str]:
    """A sentence for each thing that recorded rollouts lack to be trained on again."""
    if data.archive_reuse != "rollouts":
        return
    if data.archive_prompts is None:
        yield "archive_reuse rollouts takes them from archive_prompts, which is not set."
    if data.prompt_data is None:
        yield ("archive_reuse rollouts needs prompt_data: recorded rollouts get too old, and then fresh ones are left.")
    if not algorithm.use_tis:
        yield (
            "archive_reuse rollouts needs use_tis: recorded log-probs are those of another policy than the one that is "
            "trained, and without the weights of TIS the gradient would be biased towards it."
        )


def impossible_draws(data: DataSettings) -> Iterator[str]:
    """A sentence for each."""
    for name in ("curriculum_new", "archive_share", "archive_min_pass_rate", "archive_max_pass_rate"):
        if not 0 <= getattr(data, name) <= 1:
            yield f"{name} is {getattr(data, name)}: a share lies between 0 and 1."
    if data.prompt_rest < 0:
        yield f"prompt_rest is {data.prompt_rest}: it cannot be below 0."
    if data.archive_min_pass_rate > data.archive_max_pass_rate:
        yield (
            f"archive_min_pass_rate {data.archive_min_pass_rate} is above archive_max_pass_rate "
            f"{data.archive_max_pass_rate}: nothing lies between."
        )
    if data.archive_where is not None and data.archive_prompts is None:
        yield "archive_where chooses of archive_prompts, which is not set."
    if data.buffer_filter_path is not None and data.archive_prompts is None:
        yield (
            "buffer_filter_path chooses of archive_prompts, which is not set: groups that a step has left over are "
            "trained first come, first served."
        )
    if data.data_source_path is not None and (data.archive_prompts or data.prompt_sampler != "file"):
        yield "data_source_path excludes archive_prompts and prompt_sampler: it says itself which prompt is next."
    if data.prompt_sampler == "curriculum" and data.prompt_data is None:
        yield "prompt_sampler curriculum needs prompt_data: it chooses rows of that file."
