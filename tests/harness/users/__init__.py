"""Files of users, written for slime (`plug_points/`); `python -m tests.harness.users` uses each in a short real run."""
