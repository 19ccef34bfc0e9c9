"""Predicts a recorded run under other settings: the run's own timings, its real decisions, a virtual clock."""
