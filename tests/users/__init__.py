"""Files as users bring them, written for slime (`plug_points/`), each in a real short run: `python -m tests.users`."""
