"""Detectors of `slime-events inspect`."""
