"""Where prompts come from."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc

OUTSIDE = "outside"
"""In the place of a file: there is none."""


class DataSettings(Settings, frozen=True, kw_only=True):
    """JSONL or Parquet on any fsspec URL, with an optional slice `path@[a:b]`."""

    prompt_data: Annotated[
        str | None,
        doc("JSONL or Parquet, any fsspec URL, optional @[a:b]; outside: prompts that are published to the run alone"),
    ] = None
    rollout_global_dataset: Annotated[
        bool, doc("read prompt-data; without that, prompts are published to the run or come from data-source-path")
    ] = True
    input_key: Annotated[str, doc("field with the prompt: text or chat messages")] = "input"
    label_key: Annotated[str | None, doc("field with the label")] = None
    metadata_key: Annotated[str, doc("field with metadata")] = "metadata"
    tool_key: Annotated[str, doc("field with tools")] = "tools"
    apply_chat_template: Annotated[bool, doc("render messages with the tokenizer's chat template")] = False
    apply_chat_template_kwargs: Annotated[dict[str, Any], doc("JSON: extra arguments of the template")] = field(
        default_factory=dict
    )
    supervised: Annotated[
        bool, doc("train on the chats of prompt-data themselves: no engines, no graders; sets debug-train-only")
    ] = False
    loss_mask_type: Annotated[
        Literal["qwen", "qwen3", "qwen3_5", "distill_qwen"],
        doc("of supervised: how the tokens of the assistant's turns are found"),
    ] = "qwen"
    rollout_shuffle: Annotated[bool, doc("shuffle at each epoch (slime's rule: seed + epoch)")] = False
    prompt_sampler: Annotated[
        Literal["file", "curriculum"],
        doc("order of prompts: the file's, or by the pass rates of this run so far, near one half first"),
    ] = "file"
    curriculum_new: Annotated[
        float, doc("share of a curriculum's draws that are prompts never drawn before, while there are any")
    ] = 0.5
    prompt_rest: Annotated[int, doc("versions until a curriculum, or an archive, may draw a prompt again", least=0)] = 1
    pass_reward: Annotated[float, doc("reward from which on an answer counts as passed")] = 1.0
    archive_prompts: Annotated[
        str | None, doc("draw prompts of a recorded run again: the URL of its archive, its name or its folder")
    ] = None
    archive_share: Annotated[float, doc("share of the prompts drawn that are archive-prompts'")] = 0.25
    archive_reuse: Annotated[
        Literal["prompts", "rollouts"],
        doc("what is taken of archive-prompts: prompts alone, or the recorded rollouts too, off policy"),
    ] = "prompts"
    archive_max_staleness: Annotated[
        int, doc("optimizer steps that recorded rollouts may be behind the weights that they train")
    ] = 8
    archive_min_pass_rate: Annotated[float, doc("lowest pass rate there that is drawn again")] = 0.0
    archive_max_pass_rate: Annotated[float, doc("highest pass rate there that is drawn again")] = 1.0
    buffer_filter_path: Annotated[
        str | None,
        doc("your selection of archive-prompts' groups: (args, None, buffer, n) -> groups; default: by rate"),
    ] = None
    data_source_path: Annotated[
        str | None, doc("your own source of prompts: a class that takes (args) and has get_samples(n)")
    ] = None
    archive_where: Annotated[
        str | None, doc("SQL over that run, with a column group_id or sample: what is drawn again")
    ] = None
    source_share: Annotated[
        str | None,
        doc(
            "share of each batch by source of prompts, quiz=0.3,file=0.5; file: the run's own; the rest is everybody's"
        ),
    ] = None
    source_quota: Annotated[
        str | None, doc("prompts of a source that may wait, quiz=1000; nats: of all that come over NATS")
    ] = None
    max_bad_lines: Annotated[int, doc("malformed or too long prompt lines before the run stops")] = 100

    @property
    def waits_for_producers(self) -> bool:
        """Whether all prompts are published to the run."""
        return not (self.prompt_data or self.data_source_path or self.archive_prompts)

    @property
    def reuses_rollouts(self) -> bool:
        """Whether recorded rollouts are reused for training."""
        return self.archive_prompts is not None and self.archive_reuse == "rollouts"
