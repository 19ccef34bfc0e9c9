"""`ensure_stream`: how the stream of a run is made, and whether one that is there is a run's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.errors import ImpossibleCombination, LogUnavailable, RunNotFound, StorageError
from schemas.subjects import stream_name, stream_subjects
from storage.jetstream.api_errors import ApiError
from storage.jetstream.stream import Stream
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

DUPLICATE_WINDOW_S = 600
"""Seconds for which the server itself knows an id again. Longer costs it memory (about 150 bytes an event); fences
and look-ups know an event again for ever."""


_NO_STREAM, _OTHER_STREAM, _NOT_ENABLED, _NO_CLUSTER = 10059, 10058, {10039, 10076}, 10074


async def ensure_stream(stream: Stream, run: str, *, create: bool, replicas: int, deadline_s: float) -> None:
    """The stream is there, made with as many copies where it was not; whether it has several is noted on it.

    Raises RunNotFound (`create=False`), StorageError (another's stream), LogUnavailable (no JetStream, no answer),
    ImpossibleCombination (copies, and no cluster).
    """
    url = stream.connection.url
    try:
        # Not made anew where it is there: in a cluster even that moves leaders about.
        config = await _config(stream, deadline_s)
        if config is None and create:
            config = await _create(stream, stream_config(run, replicas), deadline_s)
    except ApiError as error:
        if error.code in _NOT_ENABLED:
            raise LogUnavailable(f"NATS at {url} runs without JetStream: start it with -js") from error
        if error.code == _NO_CLUSTER:
            raise ImpossibleCombination(
                f"--nats-replicas {replicas} needs a cluster, and NATS at {url} is a single server"
            ) from error
        raise
    if config is None:
        raise RunNotFound(f"NATS at {url} has no log of run {run!r}: check the run's name, or --nats-url")
    if create:
        _check(run, config)
    stream.replicated = int(config["num_replicas"]) > 1


async def _config(stream: Stream, deadline_s: float) -> Any:
    try:
        return (await stream.info(deadline_s))["config"]
    except ApiError as error:
        if error.code == _NO_STREAM:
            return None
        raise


async def _create(stream: Stream, wanted: Mapping[str, Any], deadline_s: float) -> Any:
    try:
        made = await stream.connection.api(f"STREAM.CREATE.{stream.name}", wanted, deadline_s=deadline_s)
    except ApiError as error:
        if error.code != _OTHER_STREAM:
            raise
        return await _config(stream, deadline_s)  # somebody else made it at the same time
    return made["config"]


def stream_config(run: str, replicas: int = 1) -> dict[str, Any]:
    """How the stream of a run is made. Nothing in it can be deleted or purged, for ever."""
    return {
        "name": stream_name(run),
        "subjects": stream_subjects(run),
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_consumers": -1,
        "max_msg_size": MAX_EVENT_BYTES + HEADER_BYTES,
        "num_replicas": replicas,
        "duplicate_window": int(DUPLICATE_WINDOW_S * 10**9),
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_atomic": True,
    }


_ESSENTIAL = (
    "subjects",
    "storage",
    "retention",
    "discard",
    "deny_delete",
    "deny_purge",
    "allow_direct",
    "allow_atomic",
)


def _check(run: str, actual: Mapping[str, Any]) -> None:
    """A stream of the same name that is not ours may differ in what costs no promise, as replicas."""
    wanted = stream_config(run)
    for key in _ESSENTIAL:
        if actual.get(key) != wanted[key]:
            raise StorageError(
                f"NATS has a stream {stream_name(run)} that is not a run's log ({key} is {actual.get(key)!r}, "
                f"not {wanted[key]!r}): choose another run name or server"
            )
