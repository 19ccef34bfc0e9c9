"""Events, their subjects, ids, codec and errors. Imports nothing of this project."""
