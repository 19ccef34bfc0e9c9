"""A run on three machines, which are network and mount namespaces of this one: `python -m tests.cluster`."""
