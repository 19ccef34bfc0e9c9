"""What is said: events, subjects, codec. Knows nobody."""
