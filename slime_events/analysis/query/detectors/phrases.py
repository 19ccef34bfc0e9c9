"""Detectors on phrases: some that rose among rewarded answers, some by which groups are won."""

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
from slime_events.analysis.query.table import FLOAT, INT, TEXT, Column

PHRASE_WORDS = Parameter("phrase_words", 3, "words of a phrase; punctuation counts as a word")
MAX_P = Parameter(
    "max_p", 1e-6, "largest probability of the figures by chance, times the number of phrases that were tested"
)

_LOG_CHOOSE = "(lgamma({0} + 1) - lgamma({1} + 1) - lgamma({0} - {1} + 1))"


def _fisher(early: str, of_early: str, late: str, of_late: str) -> str:
    """Return SQL for Fisher's exact test, one-sided: the probability of at least `late` of `of_late` groups if the
    phrase is as frequent in both windows.
    """
    both, groups = f"({early} + {late})", f"({of_early} + {of_late})"
    terms = [
        _LOG_CHOOSE.format(both, "x"),
        _LOG_CHOOSE.format(f"({groups} - {both})", f"({of_late} - x)"),
        f"-{_LOG_CHOOSE.format(groups, of_late)}",
    ]
    return f"list_sum(list_transform(range({late}, least({both}, {of_late}) + 1), lambda x: exp({' + '.join(terms)})))"


PHRASES_ROSE = Detector(
    "phrases_rose",
    "A phrase that few rewarded answers had in the first steps is in many of the last steps. The prompt does not have "
    "it. The test counts groups, because answers to the same prompt are not independent.",
    Severity.WARNING,
    (
        WINDOW,
        PHRASE_WORDS,
        Parameter("min_share", 0.3, "least share of rewarded answers with the phrase in the last window"),
        Parameter("min_rise", 0.3, "least rise of that share since the first window"),
        MAX_P,
        Parameter("max_answers", 4000, "most rewarded answers of a window that are read, chosen by a hash"),
    ),
    ("graded",),
    f"""{WINDOWS},
    read_answers AS (
        SELECT part, group_id, sample, step, {words("text")} AS word_list,
               array_to_string({words("prompt")}, ' ') AS prompt
        FROM (SELECT * FROM placed WHERE rewarded AND part IS NOT NULL
              QUALIFY row_number() OVER (PARTITION BY part ORDER BY hash(sample)) <= max_answers)
    ),
    uses AS (
        SELECT * FROM (
            SELECT part, group_id, sample, step, prompt, unnest({phrases("word_list", "phrase_words")}) AS phrase
            FROM read_answers
        )
        WHERE NOT contains(prompt, phrase)
    ),
    sizes AS (
        SELECT count(*) FILTER (part = 'first') AS first_answers, count(*) FILTER (part = 'last') AS last_answers,
               count(DISTINCT group_id) FILTER (part = 'first') AS first_groups,
               count(DISTINCT group_id) FILTER (part = 'last') AS last_groups
        FROM read_answers
    ),
    counts AS (
        SELECT phrase, count(*) FILTER (part = 'first') AS early, count(*) FILTER (part = 'last') AS late,
               count(DISTINCT group_id) FILTER (part = 'first') AS early_groups,
               count(DISTINCT group_id) FILTER (part = 'last') AS late_groups, min(step) AS first_step,
               max(step) AS last_step, {examples(where="part = 'last'")} AS examples
        FROM uses GROUP BY phrase
    ),
    tested AS (SELECT count(*) AS phrases FROM counts WHERE late > 0),
    risen AS (
        SELECT c.*, early / first_answers AS first_share, late / last_answers AS last_share,
               tested.phrases * {_fisher("early_groups", "first_groups", "late_groups", "last_groups")} AS p
        FROM counts c, sizes, tested
        WHERE first_answers > 0 AND late > 0 AND late >= min_share * last_answers
          AND late / last_answers - early / first_answers >= min_rise
    ),
    longest AS (SELECT *, count(*) OVER same AS alike,
                       row_number() OVER (same ORDER BY length(phrase) DESC, phrase) AS rank
                FROM risen WHERE p <= max_p WINDOW same AS (PARTITION BY early, late, examples))""",
    "longest t WHERE rank = 1 ORDER BY last_share - first_share DESC, phrase",
    (
        Column("phrase", TEXT, "t.phrase", "the phrase, with one blank between two words"),
        Column("alike", INT, "t.alike", "number of phrases with the same figures, such as parts of a longer one"),
        Column("first_share", FLOAT, "t.first_share", "share of rewarded answers with it in the first window"),
        Column("last_share", FLOAT, "t.last_share", "share of rewarded answers with it in the last window"),
        Column("p", FLOAT, "t.p", "probability by chance, times the number of tested phrases"),
        *STEPS,
        SAMPLES,
    ),
)

_SHARE = "(t.won / t.possible)"
_CHANCE = "(1 / t.smallest)"
ONE_TRICK = Detector(
    "one_trick",
    "In many groups, all rewarded answers have the same phrase and no other answer has it. Neither the prompt nor the "
    "label has the phrase.",
    Severity.WARNING,
    (
        PHRASE_WORDS,
        Parameter("min_share", 0.3, "least share of the groups with rewarded and other answers that it explains"),
        MIN_GROUPS,
        MAX_P,
        Parameter("max_groups", 1000, "most groups that are read, chosen by a hash"),
    ),
    ("graded",),
    f"""answers AS MATERIALIZED (FROM graded),
    sized_groups AS (
        SELECT run, group_id, count(*) AS size, count(*) FILTER (rewarded) AS winners
        FROM answers GROUP BY run, group_id
    ),
    mixed AS (
        SELECT * FROM sized_groups WHERE winners BETWEEN 1 AND size - 1
        QUALIFY row_number() OVER (ORDER BY hash(group_id)) <= max_groups
    ),
    read_answers AS (
        SELECT a.run, a.group_id, size, winners, sample, step, rewarded, {words("text")} AS word_list,
               array_to_string({words("prompt")}, ' ') AS prompt, array_to_string({words("label")}, ' ') AS label
        FROM answers a JOIN mixed m ON m.run = a.run AND m.group_id = a.group_id
    ),
    uses AS (
        SELECT * FROM (SELECT *, unnest({phrases("word_list", "phrase_words")}) AS phrase FROM read_answers)
        WHERE NOT contains(prompt, phrase) AND (coalesce(label, '') = '' OR NOT contains(phrase, label))
    ),
    by_group AS (
        SELECT phrase, run, group_id, any_value(size) AS size, any_value(winners) AS winners, count(*) AS users,
               count(*) FILTER (rewarded) AS winning, max(step) AS step, min(sample) FILTER (rewarded) AS sample
        FROM uses GROUP BY phrase, run, group_id
    ),
    counts AS (
        SELECT phrase, count(*) FILTER (users = winners) AS possible, min(size) FILTER (users = winners) AS smallest,
               count(*) FILTER (users = winners AND winning = winners) AS won,
               min(step) FILTER (users = winners AND winning = winners) AS first_step,
               max(step) FILTER (users = winners AND winning = winners) AS last_step,
               {examples(where="users = winners AND winning = winners")} AS examples
        FROM by_group GROUP BY phrase
    ),
    tested AS (SELECT count(*) AS phrases FROM counts),
    sizes AS (SELECT count(*) AS groups FROM mixed),
    bounded AS (
        SELECT t.*, groups, tested.phrases * CASE WHEN {_SHARE} <= {_CHANCE} THEN 1 ELSE exp(-t.possible * (
                   {_SHARE} * ln({_SHARE} / {_CHANCE})
                   + CASE WHEN {_SHARE} < 1 THEN (1 - {_SHARE}) * ln((1 - {_SHARE}) / (1 - {_CHANCE})) ELSE 0 END
               )) END AS p
        FROM counts t, sizes, tested WHERE t.won >= min_groups AND t.won >= min_share * groups
    ),
    longest AS (SELECT *, count(*) OVER same AS alike,
                       row_number() OVER (same ORDER BY length(phrase) DESC, phrase) AS rank
                FROM bounded WHERE p <= max_p WINDOW same AS (PARTITION BY won, possible, examples))""",
    "longest t WHERE rank = 1 ORDER BY won DESC, phrase",
    (
        Column("phrase", TEXT, "t.phrase", "the phrase, with one blank between two words"),
        Column("alike", INT, "t.alike", "number of phrases with the same figures, such as parts of a longer one"),
        Column("won", INT, "t.won", "groups that it explains: all rewarded answers have it, and no other has"),
        Column("groups", INT, "t.groups", "groups with rewarded and other answers"),
        Column(
            "p", FLOAT, "t.p", "bound of the probability by chance (Chernoff's), times the number of tested phrases"
        ),
        *STEPS,
        SAMPLES,
    ),
)

SAME_ANSWER = Detector(
    "same_answer",
    "The same text earns the reward for different prompts. It is long, or the right answers differ.",
    Severity.WARNING,
    (
        WINDOW,
        Parameter("min_share", 0.05, "least share of the rewarded answers in the last window that are this text"),
        Parameter("min_prompts", 5, "fewest different prompts that it answers"),
        Parameter("min_labels", 3, "fewest different labels of those prompts, if the text is short"),
        Parameter("min_characters", 40, "length from which a text need not answer different labels [characters]"),
    ),
    ("graded",),
    f"""{WINDOWS},
    texts AS (SELECT *, {plain("text")} AS answer FROM placed WHERE part = 'last' AND rewarded),
    counts AS (
        SELECT answer, count(*) AS answers, count(DISTINCT prompt) AS prompts, count(DISTINCT label) AS labels,
               min(step) AS first_step, max(step) AS last_step, {examples()} AS examples
        FROM texts GROUP BY answer
    ),
    sizes AS (SELECT count(*) AS answers FROM texts)""",
    """counts t, sizes
    WHERE prompts >= min_prompts AND t.answers >= min_share * sizes.answers AND length(answer) > 0
      AND (labels >= min_labels OR length(answer) >= min_characters)
    ORDER BY t.answers DESC, answer""",
    (
        Column("answer", TEXT, "left(t.answer, 200)", "the text without special tokens, its first 200 characters"),
        Column("answers", INT, "t.answers", "number of rewarded answers that are this text"),
        Column("share", FLOAT, "t.answers / sizes.answers", "the same as a share of all rewarded answers"),
        Column("prompts", INT, "t.prompts", "number of different prompts"),
        Column("labels", INT, "t.labels", "number of different labels"),
        *STEPS,
        SAMPLES,
    ),
)
