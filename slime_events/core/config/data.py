"""Settings of the prompts' source."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, at_most, excludes, needs, unused_without

OUTSIDE = "outside"
"""Value of `prompt_data` if there is no file: producers publish all prompts to the run."""


class DataSettings(Settings, frozen=True, kw_only=True):
    """Prompts: JSONL or Parquet files on any fsspec URL, an archive, producers, or your data source."""

    prompt_data: Annotated[
        str | None,
        doc("JSONL or Parquet file, any fsspec URL, optional slice @[a:b]; outside: only prompts published to the run"),
    ] = None
    rollout_global_dataset: Annotated[
        bool, doc("read prompt-data; if off, prompts are published to the run or come from data-source-path")
    ] = True
    input_key: Annotated[str, doc("field with the prompt: text or chat messages")] = "input"
    label_key: Annotated[str | None, doc("field with the label")] = None
    metadata_key: Annotated[str, doc("field with metadata")] = "metadata"
    tool_key: Annotated[str, doc("field with tools")] = "tools"
    apply_chat_template: Annotated[bool, doc("format messages with the tokenizer's chat template")] = False
    apply_chat_template_kwargs: Annotated[dict[str, Any], doc("JSON: extra arguments for the template")] = field(
        default_factory=dict
    )
    supervised: Annotated[
        bool,
        doc(
            "train on the chats in prompt-data, without engines and graders; sets debug-train-only",
            needs("prompt_data", why="the chats to train on"),
            needs("loss_type=sft_loss", "loss_type=custom_loss", why="policy_loss needs rewards, and there are none"),
            excludes(
                "archive_prompts",
                "data_source_path",
                "load_debug_rollout_data",
                "debug_rollout_only",
                why="it trains on the rows of prompt_data",
            ),
            excludes("eval_interval", why="an evaluation needs engines"),
            excludes("n_samples_per_prompt!=1", why="each row is a single sample"),
        ),
    ] = False
    loss_mask_type: Annotated[
        Literal["qwen", "qwen3", "qwen3_5", "distill_qwen"],
        doc("for supervised: chat format, to find the tokens of the assistant's turns", unused_without("supervised")),
    ] = "qwen"
    rollout_shuffle: Annotated[bool, doc("shuffle at each epoch (slime's rule: seed + epoch)")] = False
    prompt_sampler: Annotated[
        Literal["file", "curriculum"],
        doc(
            "order of prompts: as in the file, or by their pass rates in this run so far, rates near 0.5 first",
            needs("prompt_data", why="it selects rows of that file", value="curriculum"),
        ),
    ] = "file"
    curriculum_new: Annotated[
        float,
        doc("for prompt-sampler curriculum: share of draws that are new prompts, while there are any", least=0, most=1),
    ] = 0.5
    prompt_rest: Annotated[int, doc("versions before a curriculum or an archive may draw a prompt again", least=0)] = 1
    pass_reward: Annotated[float, doc("lowest reward of an answer that counts as passed")] = 1.0
    archive_prompts: Annotated[
        str | None, doc("draw prompts of a recorded run: its archive's URL, its name or its folder")
    ] = None
    archive_share: Annotated[float, doc("share of prompts drawn from archive-prompts", least=0, most=1)] = 0.25
    archive_reuse: Annotated[
        Literal["prompts", "rollouts"],
        doc(
            "reuse only the prompts of archive-prompts, or also their recorded rollouts, off policy",
            needs("archive_prompts", why="the run with the recorded rollouts", value="rollouts"),
            needs("prompt_data", why="it is used once the recorded rollouts are too old", value="rollouts"),
            needs(
                "use_tis",
                why="another policy made the rollouts, and the gradient would be biased towards that policy",
                value="rollouts",
            ),
        ),
    ] = "prompts"
    archive_max_staleness: Annotated[
        int, doc("how many optimizer steps a recorded rollout may be behind the weights that train on it")
    ] = 8
    archive_min_pass_rate: Annotated[
        float,
        doc(
            "lowest recorded pass rate of a prompt to draw from archive-prompts",
            at_most("archive_max_pass_rate", why="the range is empty"),
            least=0,
            most=1,
        ),
    ] = 0.0
    archive_max_pass_rate: Annotated[
        float, doc("highest recorded pass rate of a prompt to draw from archive-prompts", least=0, most=1)
    ] = 1.0
    buffer_filter_path: Annotated[
        str | None,
        doc(
            "your function that selects groups of archive-prompts: (args, None, buffer, n) -> groups; "
            "default: by pass rate",
            needs(
                "archive_prompts",
                "data_source_path",
                why="without them, surplus groups are trained first come, first served",
            ),
        ),
    ] = None
    data_source_path: Annotated[
        str | None,
        doc(
            "your source of prompts: a class that takes (args) and has get_samples(n)",
            excludes("archive_prompts", "prompt_sampler=curriculum", why="the data source selects the prompts"),
        ),
    ] = None
    archive_where: Annotated[
        str | None,
        doc(
            "SQL over the run of archive-prompts, with a column group_id or sample, that selects what to draw",
            needs("archive_prompts", why="the run to select from"),
        ),
    ] = None
    source_share: Annotated[
        str | None,
        doc(
            "share of each batch by source of prompts, as in quiz=0.3,file=0.5; file: the run's own prompts; all "
            "sources without a share use the rest"
        ),
    ] = None
    source_quota: Annotated[
        str | None,
        doc("most waiting prompts by source, as in quiz=1000; nats: all prompts sent over NATS", also=Later.RESUME),
    ] = None
    max_bad_lines: Annotated[int, doc("malformed or too long prompt lines after which the run fails")] = 100

    @property
    def waits_for_producers(self) -> bool:
        """Whether all prompts come from producers."""
        return not (self.prompt_data or self.data_source_path or self.archive_prompts)

    @property
    def reuses_rollouts(self) -> bool:
        """Whether the run trains on recorded rollouts."""
        return self.archive_prompts is not None and self.archive_reuse == "rollouts"
