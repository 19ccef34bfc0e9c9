"""Telemetry of a run besides its log: spans (computed from its events) and process logs."""
