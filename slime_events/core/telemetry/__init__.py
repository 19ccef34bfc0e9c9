"""What a run tells about itself beside its log: spans (rebuilt from the log with the same ids) and process logs."""
