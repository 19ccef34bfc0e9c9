"""Training again, from the log, what a run has trained: which steps, what is compared, and what it comes to. Pure."""
