"""Pieces of SQL that several tables are made of.

A run that follows another says its verdicts and batches of the other's rollouts: `of_run` is the run whose samples an
event is about. Where several runs say something of one sample or group, the nearest is right.
"""

from __future__ import annotations


def about_samples(source: str, entity: str) -> str:
    """`source` (a fact, or a SELECT in brackets) with `of_run`, one row for each `entity`."""
    return f"""(SELECT w.*, coalesce(o.of_run, w.run) AS of_run FROM {source} w LEFT JOIN (
            SELECT run, CASE WHEN branched_follows THEN branched_run ELSE run END AS of_run FROM log.run_started
        ) o ON o.run = w.run
        QUALIFY row_number() OVER (PARTITION BY coalesce(o.of_run, w.run), w.{entity} ORDER BY w.depth) = 1)"""


VERDICTS = about_samples(
    """(SELECT run, depth, position, "time", "group", 'accepted' AS verdict, NULL AS cause, reason, filter, figures
            FROM log.group_accepted
            UNION ALL
            SELECT run, depth, position, "time", "group", 'rejected', cause, reason, filter, figures
            FROM log.group_rejected)""",
    '"group"',
)

COMMITS = """(SELECT run, step, version, "time" FROM log.step_committed)"""
