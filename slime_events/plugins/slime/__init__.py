"""slime's names for users' files: their table, their importer, and the small helpers that nothing else here needs."""
