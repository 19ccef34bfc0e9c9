"""Grading: from a sample to its outcome.

    choice.py      decides which function grades a sample, and where
    dispatcher.py  sends the sample there: this process, the pool, a judge or a producer
    pool.py        a queue, and worker processes (`process.py`) with a time limit
    worker.py      what runs in such a process: loads functions (`registry.py`), grades

Each built-in grader has a file.
"""
