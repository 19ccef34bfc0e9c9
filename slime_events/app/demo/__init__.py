"""The demo: a task, a base checkpoint and settings on which GRPO plainly learns in minutes on two cores."""
