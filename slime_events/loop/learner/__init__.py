"""Learners: runs that generate nothing and train on the rollouts of a parent run, with their own decisions."""
