"""Reads a checkpoint's `config.json`: the context length and the vocabulary of its model."""
