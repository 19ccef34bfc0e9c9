"""Families of models: one file for each, with what the trainer needs to read, build and store its models."""
