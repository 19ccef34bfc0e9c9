"""Counterfactuals over a recorded run: what another reward, filter or advantage would have made of its rollouts."""
