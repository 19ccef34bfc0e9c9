"""Time travel: the whole system's state at any position of a run's log."""
