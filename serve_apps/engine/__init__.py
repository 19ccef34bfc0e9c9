"""The rollout engine: SGLang as a small async class, in a process of its own."""
