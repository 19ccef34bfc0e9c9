"""Traces and process logs."""
