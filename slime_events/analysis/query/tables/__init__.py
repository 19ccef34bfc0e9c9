"""Every table, in the order of the documentation. A table may refer to those before it."""

from slime_events.analysis.query.table import Table
from slime_events.analysis.query.tables.graded import GRADED
from slime_events.analysis.query.tables.intervals import INTERVALS
from slime_events.analysis.query.tables.rollouts import ATTEMPTS, CHUNKS, TOKENS, TURNS
from slime_events.analysis.query.tables.runs import EVENTS, RUNS, SPANS, WORKERS
from slime_events.analysis.query.tables.samples import GROUPS, PROMPTS, REJECTED_LINES, REWARDS, SAMPLES, TRAINED
from slime_events.analysis.query.tables.sessions import SESSIONS
from slime_events.analysis.query.tables.steps import ACTIVATIONS, CHECKPOINTS, EVALS, RESTORATIONS, STEPS, VERSIONS

TABLES: tuple[Table, ...] = (
    *(RUNS, EVENTS, PROMPTS, REJECTED_LINES, TRAINED, REWARDS, SAMPLES, GROUPS, GRADED),
    *(STEPS, VERSIONS, ACTIVATIONS, CHECKPOINTS, RESTORATIONS, EVALS),
    *(ATTEMPTS, CHUNKS, TURNS, SESSIONS, TOKENS, WORKERS, SPANS, INTERVALS),
)
