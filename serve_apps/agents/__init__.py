"""Agents that know only a base URL: their sessions become rollouts, their requests turns of them."""
