"""Retraining: which recorded steps are retrained, what is compared, and the report. Pure."""
