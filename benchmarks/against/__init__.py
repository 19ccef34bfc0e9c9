"""`python -m benchmarks --against REV`: a short list of figures beside those of another commit, taken in turns."""
