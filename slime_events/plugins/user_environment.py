"""`user_environment`: the environment of a process that runs user code or model output, without the run's secrets.

Graders and programs of agents get it. It is no sandbox: the process belongs to the same user and may read that user's
files.
"""

from collections.abc import Collection, Mapping

from schemas.redaction import is_secret, known_secrets, redact


def user_environment(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Return `environment` without secrets, except the names in `keep`.

    A variable is a secret because of its name, because its value has a login, or because its value has a key: in the
    JSON of fsspec's options, in a URL query, in the form of a known token. Everything else that a program needs stays:
    PATH, HOME, proxies.
    """
    return {name: value for name, value in environment.items() if name in keep or not _holds_secret(name, value)}


def grader_environment(environment: Mapping[str, str], keep: Collection[str]) -> dict[str, str]:
    """Return `user_environment` for graders; `keep` is `--rm-env`. Numeric libraries get one thread."""
    return {"OMP_NUM_THREADS": "1", **user_environment(environment, keep)}


def _holds_secret(name: str, value: str) -> bool:
    if name.upper().endswith("_PROXY"):
        return False
    return is_secret(name, value) or bool(known_secrets({name: value})) or redact(value) != value
