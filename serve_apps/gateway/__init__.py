"""HTTP for producers outside of a run: prompts in, and what became of them. It holds nothing that is not in the log."""
