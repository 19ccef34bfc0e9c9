"""slime's metrics of a run, as a fold of its log."""
