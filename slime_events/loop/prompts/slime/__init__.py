"""slime's data sources and data set for users' files."""
