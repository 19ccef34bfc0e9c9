"""Attacks on a live run of our own, on loopback alone: each has to be refused or bounded, and the run has to continue.

    python -m tests.harness.attacks                  all kinds; exit 0 only if every one was refused or bounded
    python -m tests.harness.attacks --only ids heads
    python -m tests.harness.attacks --list

attack.py   an attack, and what was answered          scene.py    the live run as an attacker finds it
places.py   the runs that are attacked                program.py  the agent's program; own_code.py  the user's code
watch.py    a process that asks /healthz and sums up memory    report.py   the table and the verdict
kinds.py    every kind, by the run that it needs; a file for each kind has its literal table
"""
