"""slime's names for users' losses and advantages."""
