"""The read model: the records of a run, folded once from its events, and their look-up by subject.

records     Sample, Group, Step, Version, Run: what every view of a run is made of
lookup      one of them out of a log, without a scan
ancestry    the same across the joins of branches
progress    step lines and figures of a run that is on, a fold of the conductor's own state
"""

from slime_events.analysis.model.records import Entry, Group, Run, Sample, Step, Version, folded, read_run

__all__ = ["Entry", "Group", "Run", "Sample", "Step", "Version", "folded", "read_run"]
