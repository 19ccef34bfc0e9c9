"""The server's side of Tinker's protocol: each call of its SDK's client is an event, each answer is in the log."""
