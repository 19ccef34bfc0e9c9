"""`Detector`: an SQL view with parameters whose rows are findings. `WINDOWS`: the steps that detectors compare."""

from __future__ import annotations

import enum
from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.analysis.query.table import INT, TEXTS, Column


class Severity(enum.StrEnum):
    """Meaning of a finding."""

    ALARM = "alarm"
    """The run has most likely no use as it is, so look at once. Holds for a run that is on, too."""
    WARNING = "warning"
    """The rewards may pay for something else than intended. Read the examples."""


class Parameter(NamedTuple):
    """A threshold of a detector, an argument of its view: `FROM equal_rewards(min_samples := 200)`."""

    name: Annotated[str, doc("name in SQL")]
    default: Annotated[float, doc("value if the query gives none")]
    description: Annotated[str, doc("one line, with the unit")]


class Detector(NamedTuple):
    """A view whose rows are findings; without rows, nothing is found. Its last column has ids of samples to read."""

    name: Annotated[str, doc("name of the view in SQL")]
    finds: Annotated[str, doc("what it finds, one sentence")]
    severity: Annotated[Severity, doc("meaning of a finding")]
    parameters: Annotated[tuple[Parameter, ...], doc("thresholds")]
    reads: Annotated[tuple[str, ...], doc("tables that it reads")]
    steps: Annotated[str, doc("common table expressions, without WITH")]
    source: Annotated[str, doc("the FROM clause over those, with the condition of a finding")]
    columns: Annotated[tuple[Column, ...], doc("its columns, in order")]

    @property
    def needs_second_grader(self) -> bool:
        """Whether it compares the recorded rewards with those of a second grader."""
        return SECOND_REWARDS in self.reads

    def sql(self, *, is_on: bool = False) -> str:
        """Return the query for all findings. is_on: whether the run is on, so that a wait may last until now."""
        until_now = is_on and any(parameter.name == NOW for parameter in self.parameters)
        return f"FROM {self.name}({f'{NOW} := epoch(now())' if until_now else ''})"

    @property
    def macro(self) -> str:
        """Statement that creates the view. `LIMIT` bounds what a hostile text can make of a terminal."""
        arguments = ", ".join(f"{parameter.name} := {parameter.default!r}" for parameter in self.parameters)
        selected = ",\n".join(f'CAST({column.sql} AS {column.type}) AS "{column.name}"' for column in self.columns)
        query = f"WITH {self.steps}\nSELECT\n{selected}\nFROM {self.source}\nLIMIT {MOST}"
        return f"CREATE MACRO {self.name}({arguments}) AS TABLE ({query})"


NOW = "at_seconds"
"""Parameter of detectors for which time counts: UTC in seconds since 1970; 0: the end of the log."""
MOST = 20
"""Most findings of one detector."""
SECOND_REWARDS = "second_rewards"
"""Table of the rewards of a second grader: `sample`, `reward` (null if grading failed). Empty without such a grader."""
EXAMPLES = 5
"""Most samples that a finding names."""
WINDOW = Parameter("window_steps", 10, "steps in the first and the last window; at most half of the run [steps]")
SHORT_WINDOW = Parameter("window_steps", 5, WINDOW.description)
MIN_GROUPS = Parameter("min_groups", 10, "fewest groups that a finding rests on")

STEPS = (
    Column("first_step", INT, "t.first_step", "first step of the window"),
    Column("last_step", INT, "t.last_step", "last step of the window"),
)
SAMPLES = Column("samples", TEXTS, "t.examples", "ids of some of its samples")
"""First columns and last column of most detectors; their source is `t`, whose sample ids are `examples`."""

WINDOWS = """
    answers AS MATERIALIZED (FROM graded),
    numbered AS (
        SELECT run, step, row_number() OVER (PARTITION BY run ORDER BY step) AS number,
               count(*) OVER (PARTITION BY run) AS total
        FROM (SELECT DISTINCT run, step FROM answers)
    ),
    sized AS (SELECT *, greatest(1, least(window_steps, total // 2))::BIGINT AS size FROM numbered),
    placed AS (
        SELECT a.*, (total - number) // size AS steps_back, total // size AS windows,
               CASE WHEN number > total - size THEN 'last' WHEN number <= size THEN 'first' END AS part
        FROM answers a JOIN sized s ON s.run = a.run AND s.step = a.step
    )"""
"""placed: graded samples with `part`, the `first` or `last` window of steps, and `steps_back`, the number of windows
back from the last.
"""


def examples(sample: str = "sample", order: str = "step DESC, sample", where: str = "true") -> str:
    """Return an SQL aggregate of a few ids of samples."""
    return f"coalesce((list({sample} ORDER BY {order}) FILTER ({where}))[1:{EXAMPLES}], [])"


def plain(text: str) -> str:
    """Return SQL for a text without special tokens and reasoning tags, cut in its middle to 4,000 characters."""
    cut = f"CASE WHEN length({text}) > 4000 THEN left({text}, 2000) || ' ' || right({text}, 2000) ELSE {text} END"
    return rf"trim(regexp_replace({cut}, '<\|[^|<>]{{1,40}}\|>|</?think>', ' ', 'g'))"


_WORDS = r"[\p{Han}\p{Hiragana}\p{Katakana}]|[\p{L}\p{M}]{1,40}|\p{N}{1,40}|[^\s\p{L}\p{M}\p{N}]{1,8}"


def words(text: str) -> str:
    """Return SQL for the words of a text: runs of letters, of digits, or of other characters; each character of
    Chinese and Japanese is a word.
    """
    return f"regexp_extract_all({plain(text)}, '{_WORDS}')"


def phrases(words: str, length: str) -> str:
    """Return SQL for the different phrases of `length` consecutive words, each with one blank between two words."""
    phrase = f"array_to_string({words}[i : i + {length}::BIGINT - 1], ' ')"
    return f"list_distinct(list_transform(range(1, len({words}) - {length}::BIGINT + 2), lambda i: {phrase}))"
