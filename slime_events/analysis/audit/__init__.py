"""The audit: is a run's whole history what it has to be? One pass over the log, a small check for each promise."""
