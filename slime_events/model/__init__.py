"""The read model: records of a run, folded from its events, and their look-up by subject.

records     Sample, Group, Step, Version, Run: the base of every view of a run
lookup      one record from a log, without a scan
ancestry    records across the joins of branches
progress    step lines and figures of a live run, a fold of the conductor's own state
"""

from slime_events.model.records import Entry, Group, Run, Sample, Step, Version, fold_run, read_run

__all__ = ["Entry", "Group", "Run", "Sample", "Step", "Version", "fold_run", "read_run"]
