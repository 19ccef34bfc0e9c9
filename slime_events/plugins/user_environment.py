"""`user_environment`: the environment of a process that runs what a user or a model wrote, without the run's secrets.

Graders and programs of agents get it. No sandbox: such a process is of the same user, and may read that user's files.
"""

from collections.abc import Collection, Mapping

from schemas.redaction import is_secret, known_secrets, redact


def user_environment(given: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """`given` without secrets, but for the names in `passed`.

    A variable is one by its name, by a login in its value, or where the value holds a key: in the JSON of fsspec's
    options, in a query, in the form of a known token. What a program needs otherwise stays: PATH, HOME, proxies.
    """
    return {name: value for name, value in given.items() if name in passed or not _holds_secret(name, value)}


def _holds_secret(name: str, value: str) -> bool:
    if name.upper().endswith("_PROXY"):
        return False
    return is_secret(name, value) or bool(known_secrets({name: value})) or redact(value) != value
