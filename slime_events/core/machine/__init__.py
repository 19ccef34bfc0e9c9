"""Describes what a machine has for a run on GPUs: devices, driver, packages and compilers."""
