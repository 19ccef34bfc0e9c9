"""Server of Tinker's protocol: each call of the SDK becomes an event, and its result is in the log."""
