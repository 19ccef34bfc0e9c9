"""Programs of the developers: what made files that stand in the repository. No run needs them."""
