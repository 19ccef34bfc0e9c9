"""Chaos on the real thing: a real training run whose processes are killed at random, and what is left of it afterwards.

    python -m tests.harness.chaos --kills 30 --seed 1

schedule.py   what is struck when (pure, seeded)     family.py      the run's processes, and no others
watcher.py    the log as a reader outside sees it    supervisor.py  starts the command again where it was killed
killer.py     carries the schedule out               measures.py    what the log says afterwards (pure)
reference.py  the same run without kills             report.py      the figures and the verdict
"""
