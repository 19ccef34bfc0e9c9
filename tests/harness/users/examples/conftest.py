from tests.harness.users.examples.stage import stage

__all__ = ["stage"]
