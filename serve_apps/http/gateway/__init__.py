"""HTTP for producers and agents: submit prompts, follow their states, open sessions. Its only state is the log."""
