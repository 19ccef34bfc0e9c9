"""Export: a run's samples as files that other tools read, and such files as rollouts again."""
