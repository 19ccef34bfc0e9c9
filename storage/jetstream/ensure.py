"""`ensure_stream`: open the stream of a run, or create it."""

from collections.abc import Mapping
from typing import Any

from schemas.errors import ImpossibleCombination, LogUnavailable, RunNotFound, StorageError
from schemas.subjects import past_stream_name, stream_name
from storage.jetstream.connection import Connection
from storage.jetstream.error_codes import NOT_ENABLED, ErrorCode
from storage.jetstream.long_stream import LongStream, is_long, long_config, past_config
from storage.jetstream.retry import ApiError
from storage.jetstream.stream import Stream, stream_config


async def ensure_stream(
    connection: Connection, run: str, *, create: bool, replicas: int, archive_url: str | None, deadline_s: float
) -> Stream:
    """Return the stream of `run`. If it does not exist and `create` is set, create it with `replicas` copies.

    archive_url: lets events of a new stream leave for that archive. For an existing stream it replaces the recorded
    path of an archive that has moved.

    Raises RunNotFound (`create=False`), StorageError (the stream is not a run's log), LogUnavailable (no JetStream, no
    answer), ImpossibleCombination (replicas without a cluster).
    """
    stream, url = Stream(connection, stream_name(run), replicated=True), connection.url
    try:
        # An existing stream is not created again: in a cluster even that moves leaders.
        info = await stream.info(deadline_s, absent=ErrorCode.JSStreamNotFoundErr)
        if info is None and create:
            config = await _config(connection, run, replicas, archive_url, deadline_s)
            create_stream, exists = f"STREAM.CREATE.{stream.name}", ErrorCode.JSStreamNameExistErr
            info = await connection.api(create_stream, config, deadline_s=deadline_s, absent=exists)
            info = info or await stream.info(deadline_s)  # another process created it at the same time
    except ApiError as error:
        if error.code in NOT_ENABLED:
            raise LogUnavailable(f"NATS at {url} runs without JetStream: start it with -js") from error
        if error.code == ErrorCode.JSStreamReplicasNotSupportedErr:
            raise ImpossibleCombination(
                f"--nats-replicas {replicas} needs a cluster, and NATS at {url} is a single server"
            ) from error
        raise
    if info is None:
        raise RunNotFound(f"NATS at {url} has no log of run {run!r}: check the run's name, or --nats-url")
    actual, lets_go = info["config"], is_long(run, info["config"])
    if create:
        _check(
            run, actual, long_config(run, "", 1) | {"subjects": actual["subjects"]} if lets_go else stream_config(run)
        )
    if lets_go:
        return LongStream(connection, run, info, archive_url)
    stream.replicated = int(actual["num_replicas"]) > 1
    return stream


async def _config(
    connection: Connection, run: str, replicas: int, archive_url: str | None, deadline_s: float
) -> dict[str, Any]:
    """Return the configuration of the new stream. The stream of its past is created empty before it."""
    if archive_url is None:
        return stream_config(run, replicas)
    past = past_stream_name(run)
    await connection.api(f"STREAM.DELETE.{past}", deadline_s=deadline_s, absent=ErrorCode.JSStreamNotFoundErr)
    await connection.api(f"STREAM.CREATE.{past}", past_config(run, replicas), deadline_s=deadline_s)
    return long_config(run, archive_url, replicas)


def _check(run: str, actual: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise StorageError if the stream is not a run's log. Replicas and the like may differ."""
    for key, expected in config.items():
        if (isinstance(expected, str | list) or expected is True) and actual.get(key) != expected:
            raise StorageError(
                f"NATS has a stream {stream_name(run)} that is not a run's log ({key} is {actual.get(key)!r}, "
                f"not {expected!r}): choose another run name or server"
            )
