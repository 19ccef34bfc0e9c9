"""A user's own generate function: rollouts of several turns, with tools, recorded turn by turn."""
