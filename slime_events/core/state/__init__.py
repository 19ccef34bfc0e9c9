"""States: folds of the log. A state depends on events alone."""
