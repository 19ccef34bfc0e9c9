"""Telemetry of a run besides its log: spans (rebuilt from the log with the same ids) and process logs."""
