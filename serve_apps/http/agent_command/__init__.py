"""`--agent-command`: starts a program for each rollout that waits for an agent."""
