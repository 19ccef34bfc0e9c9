"""Converts between names of the protocol and names in the log. Each follows from the other, so no table is stored.

protocol                                     in the log
<session>:train:0                            model `<session>-m0`, its command 12 `<session>-m0-000012`
<session>:sample:1:v7                        weights of version 7
tinker://<session>:train:0/weights/<name>    path of a command.done, which has the version
"""

import hashlib
import re
import secrets
from dataclasses import dataclass

from schemas.commands import CommandKind
from schemas.errors import InvalidValue
from schemas.ids import call_group_id, sample_id

_SESSION = "tinker-[0-9a-f]{16}"
_MODEL = re.compile(f"({_SESSION}):train:([0-9]{{1,9}})")
_SAMPLER = re.compile(f"{_SESSION}:(?:sample:[0-9]{{1,9}}|save:[0-9]{{1,9}}):v([0-9]{{1,9}})")
_FUTURE = re.compile(r"(call-[0-9]+-[0-9a-f]{16}):([0-9]{1,6})")
_COMMAND = re.compile(f"{_SESSION}-m[0-9]{{1,9}}-[0-9]{{6,}}")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
FOLDERS = {CommandKind.SAVE_WEIGHTS: "weights", CommandKind.SAVE_WEIGHTS_FOR_SAMPLER: "sampler_weights"}


def new_session() -> str:
    """Return a new name of a client's session, which other clients cannot guess."""
    return f"tinker-{secrets.token_hex(8)}"


def check_session(session: str) -> str:
    """Return the session. Raises InvalidValue."""
    if not re.fullmatch(_SESSION, session):
        raise InvalidValue(f"session_id {session!r} is not of this server")
    return session


def new_model(session: str, number: int) -> str:
    """Return the name in the log of a session's model. Raises InvalidValue."""
    if not 0 <= number < 10**9:
        raise InvalidValue(f"model_seq_id must be 0 to {10**9 - 1}, not {number}")
    return f"{check_session(session)}-m{number}"


def model_of(model_id: str) -> str:
    """Return the name of a model in the log. Raises InvalidValue."""
    match = _MODEL.fullmatch(model_id)
    if match is None:
        raise InvalidValue(f"model_id {model_id!r} is not of this server")
    return f"{match[1]}-m{int(match[2])}"


def model_id_of(model: str) -> str:
    """Return the name of a model in the protocol."""
    session, _, number = model.rpartition("-m")
    return f"{session}:train:{number}"


def command_of(model: str, number: int) -> str:
    """Return the name of a model's command."""
    return f"{model}-{number:06d}"


def path_of(model: str, kind: CommandKind, name: str) -> str:
    """Return the path of saved weights. Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"path {name!r}: must be a name of up to 128 letters, digits, '.', '_' and '-'")
    return f"tinker://{model_id_of(model)}/{FOLDERS[kind]}/{name}"


def sampler_of(session: str, number: int, version: int, *, saved: bool = False) -> str:
    """Return the name of a sampling session. number: the client's number, or if `saved`, that of the save command."""
    return f"{session}:{'save' if saved else 'sample'}:{number}:v{version}"


def version_of(sampler: str) -> int:
    """Return the weight version of a sampling session. Raises InvalidValue."""
    match = _SAMPLER.fullmatch(sampler)
    if match is None:
        raise InvalidValue(f"sampling_session_id {sampler!r} is not of this server")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class Samples:
    """Rollouts of a call of `sample`: `count` rollouts of purpose `call` in one group."""

    group: str
    count: int

    @classmethod
    def new(cls, sampler: str, number: int, version: int, count: int) -> "Samples":
        """Return the rollouts of a call. number: index among the sampling session's calls, which identifies it."""
        digest = hashlib.sha256(f"{sampler} {number}".encode()).hexdigest()
        return cls(call_group_id(version, digest, evaluation=False), count)

    @classmethod
    def of(cls, future: str) -> "Samples | None":
        """Return the rollouts of a future; None if the future is of a command."""
        match = _FUTURE.fullmatch(future)
        return None if match is None else cls(match[1], int(match[2]))

    @property
    def future(self) -> str:
        """Id of the call's future in the protocol."""
        return f"{self.group}:{self.count}"

    @property
    def ids(self) -> list[str]:
        """Ids of the samples; in the protocol their sequence ids."""
        return [sample_id(self.group, index) for index in range(self.count)]


def check_command(future: str) -> str:
    """Return the command of a future, whose name is the same. Raises InvalidValue."""
    if not _COMMAND.fullmatch(future):
        raise InvalidValue(f"request_id {future!r} is not of this server")
    return future
