"""`python -m deploy.check`: check each file of deploy/ with a program that reads it, then run on its services."""
