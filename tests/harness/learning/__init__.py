"""Real runs of the demo's task with several model classes and layouts: each learns as its one-rank run does.

    python -m tests.harness.learning --only qwen3 "PP 2"

models.py    the models, taught as the demo's was       commands.py   the run's command, and which rank is killed
measured.py  what a run that is over says (pure)        verdict.py    a run beside its one-rank run (pure)
report.py    verdicts as a table
"""
