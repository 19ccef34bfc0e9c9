"""Agents as their authors wrote them, in real runs whose gateway, engine and conductor are killed while they ask.

    python -m tests.harness.agent_kills --install build/agents --agent openai smolagents --seed 1

agents.py    the eight agents, and what each needs        install.py  their packages, in a folder of their own
witness.py   writes down the answers an agent received     told.py     reads them (pure)
settings.py  the run that they train                      verdict.py  checks its log (pure)
trial.py     one run, struck and judged
"""
