"""The event log, blobs, archives and weights: memory, NATS JetStream, any fsspec URL."""
