"""Export: writes a run's samples as files for other tools, and reads such files as rollouts."""
