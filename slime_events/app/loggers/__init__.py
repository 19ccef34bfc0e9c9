"""Loggers: where the metrics of a run are written to, beside its log."""
