"""The conductor's decisions: which prompts are drawn, which groups accepted, when a batch is sealed. Pure."""
