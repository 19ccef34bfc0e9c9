"""A whole run in one process: every real shell over the in-memory log, with scripted engines and ranks."""
