"""Everything that was said in a run, by what it is about. A fold of the log, in one pass.

Where `RunState` forgets what is over, a history keeps it: which samples a group had, why it was taken or not, which
step trained it and which weight version came of that. Token arrays are left in the log; `read_trajectory` reads those
of one sample when they are asked for.
"""

from slime_events.analysis.model.apply import apply, read_history
from slime_events.analysis.model.history import History
from slime_events.analysis.model.parts import GroupHistory, Said, SampleHistory, StepHistory, VersionHistory

__all__ = ["GroupHistory", "History", "Said", "SampleHistory", "StepHistory", "VersionHistory", "apply", "read_history"]
