"""The table that the detectors of `inspect` read: graded samples of training."""

from slime_events.analysis.query.table import BOOL, FLOAT, IN_LOG, INT, TEXT, Column, Table

_NEWEST = "list_max(list_transform(c.spans, lambda x: x.version))"

GRADED = Table(
    "graded",
    "A row per training sample with a reward, as the detectors of [`slime-events inspect`](inspecting.md) read it.",
    """log.reward_assigned t
    JOIN log.rollout_completed c ON c.run = t.run AND c.sample = t.sample
    JOIN log.prompt_submitted p ON p.run = t.run AND p."group" = t."group" AND p.purpose = 'train'
    LEFT JOIN trained b ON b.sample_run = t.run AND b.sample = t.sample
    JOIN (SELECT r.run, (min(r.value) + max(r.value)) / 2 AS middle FROM log.reward_assigned r
          SEMI JOIN log.rollout_completed c ON c.run = r.run AND c.sample = r.sample
          SEMI JOIN (FROM log.prompt_submitted WHERE purpose = 'train') p ON p.run = r.run AND p."group" = r."group"
          GROUP BY r.run) m ON m.run = t.run""",
    (
        *IN_LOG,
        Column("sample", TEXT, "t.sample", "id of the sample"),
        Column("group_id", TEXT, 't."group"', "group of the sample"),
        Column(
            "step", INT, f"coalesce(b.step, {_NEWEST}, 0)", "step that trains on it; else newest weight version in it"
        ),
        Column("reward", FLOAT, "t.value", "reward as graded"),
        Column(
            "rewarded",
            BOOL,
            "t.value > m.middle",
            "whether the reward is above the middle of the run's lowest and highest reward",
        ),
        Column("grader", TEXT, "t.grader", "name or path of the grader"),
        Column("tokens", INT, "c.length", "response length [tokens]"),
        Column("truncated", BOOL, "c.stop = 'length'", "whether the length limit cut it"),
        Column("prompt", TEXT, "coalesce(nullif(c.prompt_text, ''), p.text)", "prompt as the model saw it"),
        Column("label", TEXT, "p.label", "right answer, if there is one"),
        Column("text", TEXT, "c.text", "text of the response"),
    ),
)
