"""Retraining: which recorded steps are trained again, what is compared, and the report. Pure."""
