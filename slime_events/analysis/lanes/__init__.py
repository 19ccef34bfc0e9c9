"""A run's timeline in lanes: a lane per worker, and one per kind of wait."""
