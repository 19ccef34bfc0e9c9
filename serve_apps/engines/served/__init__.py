"""Models that are served beside the trained one: they keep their weights, and functions ask them over HTTP."""
