"""A step on a rank, the same for every training backend: what is computed of a batch, around a `Policy` that can run
and update a model.
"""
