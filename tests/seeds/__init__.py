"""`python -m tests.seeds`: what slime's users start, parsed, checked against its model and planned."""
