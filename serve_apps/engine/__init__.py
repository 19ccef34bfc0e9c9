"""The rollout engine: SGLang as a small async class, and a scripted stand-in for tests and simulation."""
