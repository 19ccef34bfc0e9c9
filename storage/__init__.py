"""Where it is kept: event log, blobs, archive, weights."""
