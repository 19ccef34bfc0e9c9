"""A checker of a run's history that reads nothing but the raw records, and shares no code with what it checks."""
