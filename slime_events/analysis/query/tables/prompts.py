"""Prompts, and lines that could not be one."""

from slime_events.analysis.query.table import INT, JSON, POSITION, RUN, TEXT, TIME, Column, Table

PROMPTS = Table(
    "prompts",
    "A row per prompt that was drawn or sent, which is one per group: an evaluation's questions too.",
    "log.prompt_submitted t",
    (
        RUN,
        POSITION,
        Column("group_id", TEXT, 't."group"', "the group of samples that answer it"),
        Column("submitted", TIME, 't."time"', "UTC"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        Column("dataset", TEXT, "t.dataset", "`train`, `inbox`, or the evaluation's name"),
        Column("version", INT, "t.version", "the weight version that an evaluation is of"),
        Column("source", TEXT, "t.source_path", "file URL, or `inbox`"),
        Column("source_row", INT, "t.source_row", "0-based usable row of the file: the same in every epoch"),
        Column("source_line", INT, "t.source_line", "1-based line of the file"),
        Column("epoch", INT, "t.source_epoch", "pass over the source, from 0"),
        Column("source_offset", INT, "t.source_offset", "prompts drawn from this source before it"),
        Column("key", TEXT, "nullif(t.source_key, '')", "the sender's idempotency key, for the inbox"),
        Column("text", TEXT, "t.text", "as the model sees it, after the chat template"),
        Column("label", TEXT, "t.label", "the right answer, where there is one"),
        Column("tokens", INT, "t.tokens", "how many"),
        Column("messages", JSON, "t.messages", "the chat that it was made from"),
        Column("metadata", JSON, "t.metadata", "as given"),
        Column("tools", JSON, "t.tools", "as given"),
    ),
)

REJECTED_LINES = Table(
    "rejected_lines",
    "A row per line of a prompt file that could not be used.",
    "log.prompt_rejected t",
    (
        RUN,
        POSITION,
        Column("time", TIME, 't."time"', "UTC"),
        Column("dataset", TEXT, "t.dataset", "`train`, or the evaluation's name"),
        Column("source", TEXT, "t.source_path", "file URL"),
        Column("source_line", INT, "t.source_line", "1-based"),
        Column("epoch", INT, "t.source_epoch", "from 0"),
        Column("reason", TEXT, "t.reason", "one sentence"),
    ),
)
