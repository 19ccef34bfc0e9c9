"""States: what the log adds up to. A state is a fold of events and nothing else."""
