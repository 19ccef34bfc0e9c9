"""`python -m deploy.check`: each file of deploy/ by what can read it, then a run on its services."""
