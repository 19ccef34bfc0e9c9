"""Detectors on single answers and groups: repeated, repetitive, and with text after the answer."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import (
    MIN_GROUPS,
    SAMPLES,
    STEPS,
    WINDOW,
    WINDOWS,
    Detector,
    Parameter,
    Severity,
    examples,
    phrases,
    plain,
    words,
)
from slime_events.analysis.query.table import FLOAT, INT, Column

SAME_IN_GROUP = Detector(
    "same_in_group",
    "In many groups all answers are the same long text, so sampling makes no difference any more.",
    Severity.WARNING,
    (
        WINDOW,
        Parameter("min_share", 0.5, "least share of the groups in the last window"),
        Parameter("min_characters", 200, "least length of the text [characters]"),
        MIN_GROUPS,
    ),
    ("graded",),
    f"""{WINDOWS},
    by_group AS (
        SELECT run, group_id, count(*) AS answers, count(DISTINCT text) AS texts,
               max(length({plain("text")})) AS characters,
               min(step) AS step, min(sample) AS sample
        FROM placed WHERE part = 'last' GROUP BY ALL HAVING answers > 1
    ),
    counts AS (
        SELECT run, count(*) AS groups, count(*) FILTER (texts = 1 AND characters >= min_characters) AS same,
               min(step) AS first_step, max(step) AS last_step,
               {examples(where="texts = 1 AND characters >= min_characters")} AS examples
        FROM by_group GROUP BY run
    )""",
    "counts t WHERE same >= min_groups AND same >= min_share * groups",
    (
        *STEPS,
        Column("same", INT, "t.same", "number of groups whose answers are all the same"),
        Column("groups", INT, "t.groups", "number of groups"),
        SAMPLES,
    ),
)

REPETITION = Detector(
    "repetition",
    "Many rewarded answers repeat themselves: most of their sequences of four words occur before in the same answer.",
    Severity.WARNING,
    (
        WINDOW,
        Parameter("min_words", 60, "words from which an answer counts; punctuation counts as a word"),
        Parameter("min_repeated", 0.5, "share of repeated sequences from which an answer is repetitive"),
        Parameter("min_share", 0.1, "least share of the rewarded answers in the last window that are repetitive"),
        MIN_GROUPS,
        Parameter("max_answers", 4000, "most rewarded answers that are read, chosen by a hash"),
    ),
    ("graded",),
    f"""{WINDOWS},
    read_answers AS (
        SELECT run, group_id, sample, step, {words("text")} AS word_list
        FROM (SELECT * FROM placed WHERE part = 'last' AND rewarded
              QUALIFY row_number() OVER (PARTITION BY run ORDER BY hash(sample)) <= max_answers)
    ),
    measured AS (
        SELECT run, group_id, sample, step,
               CASE WHEN len(word_list) >= min_words
                    THEN 1 - len({phrases("word_list", "4")}) / greatest(1, len(word_list) - 3) ELSE 0 END AS repeated
        FROM read_answers
    ),
    counts AS (
        SELECT run, count(*) AS answers, count(*) FILTER (repeated >= min_repeated) AS repetitive,
               count(DISTINCT group_id) FILTER (repeated >= min_repeated) AS groups,
               avg(repeated) FILTER (repeated >= min_repeated) AS repeated, min(step) AS first_step,
               max(step) AS last_step,
               {examples(order="repeated DESC, sample", where="repeated >= min_repeated")} AS examples
        FROM measured GROUP BY run
    )""",
    "counts t WHERE groups >= min_groups AND repetitive >= min_share * answers",
    (
        *STEPS,
        Column("repetitive", INT, "t.repetitive", "number of repetitive answers"),
        Column("share", FLOAT, "t.repetitive / t.answers", "their share of the rewarded answers that were read"),
        Column("repeated", FLOAT, "t.repeated", "mean share of repeated sequences in them"),
        SAMPLES,
    ),
)

_MARKERS = (
    r"\\boxed\{(?:[^{}]|\{[^{}]*\})*\}",
    r"####[ \t]*[^\s#]+",
    r"</answer>",
    r"(?:^|\n)[^\w\n]*(?:final )?answer[^\w\n]*[:=][^\n]*",
)
MARKER = "|".join(_MARKERS)
"""Regular expression of a final answer: \\boxed{}, ####, </answer>, or a line that begins with `Answer:`."""

_ANSWER = r"regexp_replace(right(text, 20000), '(?s)^.*</think>|(?:\s|<\|[^|<>]{1,40}\|>)+$', '', 'g')"
TEXT_AFTER_ANSWER = Detector(
    "text_after_answer",
    "Many rewarded answers continue after their final answer (\\boxed{}, ####, </answer> or a line `Answer:`).",
    Severity.WARNING,
    (
        WINDOW,
        Parameter("min_characters", 40, "least length of the text after the first final answer [characters]"),
        Parameter("min_share", 0.2, "least share of the rewarded answers in the last window"),
        MIN_GROUPS,
    ),
    ("graded",),
    f"""{WINDOWS},
    ends AS (
        SELECT run, part, group_id, sample, step, rewarded,
               length(trim(regexp_extract({_ANSWER}, '(?is)^.*?(?:{MARKER})(.*)$', 1))) AS characters
        FROM placed WHERE part IS NOT NULL
    ),
    counts AS (
        SELECT run, count(*) FILTER (rewarded AND part = 'last') AS answers,
               count(*) FILTER (rewarded AND part = 'last' AND characters >= min_characters) AS continued,
               count(*) FILTER (part = 'last' AND characters >= min_characters) AS unrewarded_too,
               count(*) FILTER (rewarded AND part = 'first') AS first_answers,
               count(*) FILTER (rewarded AND part = 'first' AND characters >= min_characters) AS first_continued,
               count(DISTINCT group_id) FILTER (rewarded AND part = 'last' AND characters >= min_characters) AS groups,
               avg(characters) FILTER (rewarded AND part = 'last' AND characters >= min_characters) AS characters,
               min(step) FILTER (part = 'last') AS first_step, max(step) FILTER (part = 'last') AS last_step,
               {examples(where="rewarded AND part = 'last' AND characters >= min_characters")} AS examples
        FROM ends GROUP BY run
    )""",
    "counts t WHERE groups >= min_groups AND continued >= min_share * answers",
    (
        *STEPS,
        Column("share", FLOAT, "t.continued / t.answers", "share of rewarded answers that continue, last window"),
        Column(
            "first_share",
            FLOAT,
            "t.first_continued / nullif(t.first_answers, 0)",
            "the same in the first window; null if no answer was rewarded there",
        ),
        Column("rewarded", FLOAT, "t.continued / t.unrewarded_too", "share of answers that continue and are rewarded"),
        Column("characters", FLOAT, "t.characters", "mean length of the text after the final answer [characters]"),
        SAMPLES,
    ),
)
