"""Prompts from files: streamed, indexed, in slime's order, every unusable line named."""
