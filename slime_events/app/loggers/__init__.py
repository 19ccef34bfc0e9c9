"""Loggers: write the metrics of a run to other programs, besides its log."""
