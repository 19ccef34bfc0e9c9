"""The messages between a grader pool and its processes: MessagePack, never pickle."""

import struct
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.plain_values import plain
from slime_events.plugins.rewards.outcome import Graded, RewardFailure
from slime_events.plugins.sample import Sample

MARK = struct.Struct("<i")
"""The number of the job that a process works on, in the page that it shares with its pool."""
IDLE = -1


class Setup(msgspec.Struct, frozen=True):
    """First message to a process."""

    settings: RewardSettings
    args: Annotated[dict[str, Any], doc("Attributes of a user function's `args` beside the reward settings.")]
    user_dir: Annotated[str, doc("Folder of the user's code.")]


class Job(msgspec.Struct, frozen=True):
    """One call of a grader.

    A batch is a list of jobs. Each is encoded separately, so that it can be sent again without the others.
    """

    samples: Annotated[list[Any], doc("`Sample`s, sent as dicts.")]
    group: Annotated[bool, doc("Whether the samples are graded as a whole.")] = False
    evaluation: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A process has loaded its grader."""

    grader: Annotated[str, doc("The run's own grader; empty if each sample names one.")]
    digest: Annotated[str, doc("sha256 (hex) of its source.")]
    concurrent: Annotated[bool, doc("Whether the grader is async.")]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A process has loaded a grader that a sample names itself."""

    key: Annotated[str, doc("Path or name that the sample has.")]
    grader: Annotated[str, doc("Name in events.")]
    digest: Annotated[str, doc("sha256 (hex) of its source.")]


class SetupFailed(msgspec.Struct, frozen=True, tag="setup_failed"):
    """A process could not load its grader."""

    error: Annotated[str, doc("Name of a class in `schemas.errors`.")]
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """One job of the batch is graded."""

    job: Annotated[int, doc("Index in the batch.")]
    outcomes: Annotated[list[Graded | RewardFailure], doc("One for each sample.")]


Answer = Ready | Loaded | SetupFailed | Done

_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_jobs = msgspec.msgpack.Decoder(list[Job])


def encode(message: object) -> bytes:
    """Encode as MessagePack. Scalars and arrays of numpy and torch become numbers and lists."""
    return _encoder.encode(message)


def encode_job(job: Job) -> bytes:
    """Encode a job with every attribute of its samples, including those that user code added."""
    return encode(msgspec.structs.replace(job, samples=[sample.to_dict() for sample in job.samples]))


def decode_jobs(payload: bytes | bytearray) -> list[Job]:
    jobs = _jobs.decode(payload)
    return [msgspec.structs.replace(job, samples=[Sample.from_dict(sample) for sample in job.samples]) for job in jobs]
