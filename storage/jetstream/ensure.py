"""`ensure_stream`: the stream of a run, made where there is none and it is wanted."""

from collections.abc import Mapping
from typing import Any

from schemas.errors import ImpossibleCombination, LogUnavailable, RunNotFound, StorageError
from schemas.subjects import past_stream_name, stream_name
from storage.jetstream.connection import Connection
from storage.jetstream.long_stream import LongStream, is_long, long_config, past_config
from storage.jetstream.retry import ApiError
from storage.jetstream.stream import Stream, stream_config

_NO_STREAM, _OTHER_STREAM, _NOT_ENABLED, _NO_CLUSTER = 10059, 10058, {10039, 10076}, 10074
"""JetStream's error codes."""


async def ensure_stream(
    connection: Connection, run: str, *, create: bool, replicas: int, archive_url: str | None, deadline_s: float
) -> Stream:
    """The stream of `run`, made where there is none, with that many copies. archive_url: a new one lets events leave
    for that archive; of one that is there the archive is at that URL, where it is no more where it was.

    Raises RunNotFound (`create=False`), StorageError (a stream that is no run's log), LogUnavailable (no JetStream, no
    answer), ImpossibleCombination (copies, and no cluster).
    """
    stream, url = Stream(connection, stream_name(run), replicated=True), connection.url
    try:
        # Not made anew where it is there: in a cluster even that moves leaders about.
        info = await stream.info(deadline_s, absent=_NO_STREAM)
        if info is None and create:
            wanted = await _config(connection, run, replicas, archive_url, deadline_s)
            create_stream = f"STREAM.CREATE.{stream.name}"
            info = await connection.api(create_stream, wanted, deadline_s=deadline_s, absent=_OTHER_STREAM)
            info = info or await stream.info(deadline_s)  # somebody else made it at the same time
    except ApiError as error:
        if error.code in _NOT_ENABLED:
            raise LogUnavailable(f"NATS at {url} runs without JetStream: start it with -js") from error
        if error.code == _NO_CLUSTER:
            raise ImpossibleCombination(
                f"--nats-replicas {replicas} needs a cluster, and NATS at {url} is a single server"
            ) from error
        raise
    if info is None:
        raise RunNotFound(f"NATS at {url} has no log of run {run!r}: check the run's name, or --nats-url")
    config, lets_go = info["config"], is_long(run, info["config"])
    if create:
        _check(
            run, config, long_config(run, "", 1) | {"subjects": config["subjects"]} if lets_go else stream_config(run)
        )
    if lets_go:
        return LongStream(connection, run, info, archive_url)
    stream.replicated = int(config["num_replicas"]) > 1
    return stream


async def _config(
    connection: Connection, run: str, replicas: int, archive_url: str | None, deadline_s: float
) -> dict[str, Any]:
    """How the new stream is made. What remembers its past is made before, and has forgotten any earlier run."""
    if archive_url is None:
        return stream_config(run, replicas)
    past = past_stream_name(run)
    await connection.api(f"STREAM.DELETE.{past}", deadline_s=deadline_s, absent=_NO_STREAM)
    await connection.api(f"STREAM.CREATE.{past}", past_config(run, replicas), deadline_s=deadline_s)
    return long_config(run, archive_url, replicas)


def _check(run: str, actual: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """A stream of the same name that is not ours. What costs no promise may differ, as replicas."""
    for key, wanted in config.items():
        if (isinstance(wanted, str | list) or wanted is True) and actual.get(key) != wanted:
            raise StorageError(
                f"NATS has a stream {stream_name(run)} that is not a run's log ({key} is {actual.get(key)!r}, "
                f"not {wanted!r}): choose another run name or server"
            )
