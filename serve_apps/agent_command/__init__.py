"""`--agent-command`: a program that is started for each rollout that waits for an agent."""
