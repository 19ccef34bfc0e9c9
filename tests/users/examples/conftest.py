from tests.users.examples.stage import stage

__all__ = ["stage"]
