"""`python -m tests.harness.gpu`: what the CUDA path does on this machine's GPU, as a table."""
