"""What JetStream answered: JSON, or one of its refusals as an error."""

from __future__ import annotations

import json
from typing import Any

from schemas.errors import NoSpace, StorageError
from storage.jetstream.retry import Away


class ApiError(StorageError):
    """JetStream refused. `code` is its own error code, e.g. 10071."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream error {code}: {description}")
        self.code = code


_FULL = {10023, 10047, 10077}
"""JetStream's codes for no room: insufficient resources, insufficient storage, maximum bytes exceeded."""

_BUSY = {10005, 10008, 10009, 10158, 10167, 10176}
"""Too few nodes known yet for the replicas, no leader yet, a cluster that is not ready, the same event is on its way
from another writer, too much in flight, a batch whose first part was lost on the way."""


def checked(data: bytes) -> Any:
    """The JSON of an answer. Raises Away, NoSpace or ApiError for a refusal, Away for what is no JSON."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise Away(f"an answer that is not JSON: {data[:80]!r}") from error
    refusal = answer.get("error")
    if not refusal:
        return answer
    code, description = int(refusal.get("err_code", 0)), str(refusal.get("description", ""))
    if code in _FULL:
        raise NoSpace(f"NATS has no room to store more ({description}): free disk space in its folder")
    if code in _BUSY or refusal.get("code") in (429, 503):
        raise Away(f"JetStream error {code}: {description}")
    raise ApiError(code, description)
