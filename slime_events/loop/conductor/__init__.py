"""The conductor's decisions: which prompts are drawn, which groups are accepted, when a batch is sealed. Pure."""
