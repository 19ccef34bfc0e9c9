"""All checks, in the order in which they are reported: from the record to the run."""

from pathlib import Path

from slime_events.analysis.audit.batches import Batches, Followed
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.evaluations import Evaluations
from slime_events.analysis.audit.groups import Rewards, Verdicts
from slime_events.analysis.audit.history import Archive, Fold, Lifetime, Positions
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.prompts import Prompts
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, RecordedRollouts
from slime_events.analysis.audit.rollouts import Rollouts
from slime_events.analysis.audit.steps import Staleness, Steps, Training
from slime_events.analysis.audit.tokens import Fetch, Tokens
from slime_events.analysis.audit.weights import WeightFiles, Weights


def make_checks(
    ledger: Ledger,
    *,
    fetch: Fetch | None,
    weights: Path | None,
    files: bool,
    parent: Ledger | None = None,
    recorded: RecordedEnds | None = None,
) -> list[Check]:
    """One of each. files: look at weight folders too. parent: the ledger of the run that this one follows.
    recorded: ends of the recorded rollouts that this run reuses.
    """
    checks: list[Check] = [
        Positions(ledger),
        Lifetime(ledger),
        Prompts(ledger),
        Rollouts(ledger),
        RecordedRollouts(ledger, recorded or {}),
        Tokens(ledger, fetch),
        Rewards(ledger),
        Verdicts(ledger),
        Batches(ledger),
        Steps(ledger),
        Training(ledger),
        Followed(ledger, parent),
        Staleness(ledger),
        Evaluations(ledger),
        Weights(ledger),
        Archive(ledger),
        Fold(ledger),
    ]
    return [*checks, WeightFiles(ledger, weights)] if files else checks
