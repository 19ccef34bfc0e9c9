"""The messages between a pool and its worker processes: MessagePack, never pickle."""

import struct
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.plain_values import plain
from slime_events.plugins.rewards.choice import Choice
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
    own: Annotated[Choice | None, doc("The run's own function; None if each sample names its own.")] = None


class Job(msgspec.Struct, frozen=True):
    """One call of a function.

    A batch is a list of jobs. Each is encoded separately, so that it can be sent again without the others.
    """

    samples: Annotated[list[Any], doc("`Sample`s, sent as dicts.")]
    choice: Annotated[Choice, doc("The function that grades them.")]
    group: Annotated[bool, doc("Whether the samples are graded as a whole.")] = False
    evaluation: bool = False


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A process has loaded a function. The first such message says that it is ready."""

    choice: Annotated[Choice, doc("The run's own function, or one that a sample names; empty if the run has none.")]
    grader: Annotated[str, doc("Its name in events.")] = ""
    digest: Annotated[str, doc("sha256 (hex) of its source.")] = ""
    concurrent: Annotated[bool, doc("Whether it is async.")] = False


class SetupFailed(msgspec.Struct, frozen=True, tag="setup_failed"):
    """A process could not load the run's own function."""

    error: Annotated[str, doc("Name of a class in `schemas.errors`.")]
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """One job of the batch is graded."""

    job: Annotated[int, doc("Index in the batch.")]
    outcomes: Annotated[list[Graded | RewardFailure], doc("One for each sample.")]


Answer = Loaded | SetupFailed | Done

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
