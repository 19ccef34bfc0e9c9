"""Counterfactuals: the rollouts of a recorded run under another reward, filter or advantage."""
