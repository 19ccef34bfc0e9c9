"""What DuckDB says against a query, as our error: what is wrong, the names that were probably meant, and the line."""

from __future__ import annotations

import re

import duckdb

from schemas.errors import BadQuery
from slime_events.analysis.query.facts import FACTS, LOG
from slime_events.analysis.query.tables import TABLES
from slime_events.core.config.nearest import did_you_mean

_KIND = re.compile(r"^[A-Z][A-Za-z ]* Error: ")
_TABLE = re.compile(r"Table with name (\S+) does not exist")
_COLUMN = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_LINE = re.compile(r"LINE (\d+):")
_AT_GROUP = re.compile(r"\bgroup\s*(,|$|from\b|\n)", re.IGNORECASE)


def bad_query(error: duckdb.Error, sql: str = "", *, lines_before: int = 0) -> BadQuery:
    """lines_before: that were put before the query, whose first line is 1."""
    said, _, where = str(error).strip().partition("\n\nLINE ")
    said = _KIND.sub("", said).strip()
    if found := _TABLE.search(said):
        names = [table.name for table in TABLES] + [name for fact in FACTS for name in (fact, f"{LOG}.{fact}")]
        said = f"there is no table {found[1]}.{did_you_mean(found[1], names)}"
    elif found := _COLUMN.search(said):
        name = found[1] or found[2]
        here = re.findall(r'"([^"]+)"', said.partition("Candidate bindings:")[2])
        columns = [*here, *(column.name for table in TABLES for column in table.columns)]
        said = f"there is no column {name} here.{did_you_mean(name, columns)}"
    elif isinstance(error, duckdb.ParserException) and _AT_GROUP.search(sql):
        said += ". GROUP is a word of SQL: the id of a group is the column group_id"
    if where:
        said += "\n" + _LINE.sub(lambda line: f"line {int(line[1]) - lines_before}:", f"LINE {where}").rstrip()
    return BadQuery(f"the query cannot be answered: {said}")
