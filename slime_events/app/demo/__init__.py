"""The demo: a task, a base checkpoint and settings with which GRPO learns visibly in minutes on two cores."""
