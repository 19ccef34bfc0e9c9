"""Names of the protocol, made of names in the log and taken apart again; so no table of them is kept anywhere.

protocol                                     in the log
<session>:train:0                            model `<session>-m0`, its command 12 `<session>-m0-000012`
<session>:sample:1:v7                        the weights of version 7, whatever the client calls them
tinker://<session>:train:0/weights/<name>    the path of a command.done, with the version that it names
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
    """Of a client. Nobody can guess another's."""
    return f"tinker-{secrets.token_hex(8)}"


def check_session(session: str) -> str:
    """Raises InvalidValue."""
    if not re.fullmatch(_SESSION, session):
        raise InvalidValue(f"session_id {session!r} is none of this server's")
    return session


def new_model(session: str, number: int) -> str:
    """A session's model, in the log. Raises InvalidValue."""
    if not 0 <= number < 10**9:
        raise InvalidValue(f"model_seq_id {number}: from 0 to {10**9 - 1}")
    return f"{check_session(session)}-m{number}"


def model_of(model_id: str) -> str:
    """In the log. Raises InvalidValue."""
    found = _MODEL.fullmatch(model_id)
    if found is None:
        raise InvalidValue(f"model_id {model_id!r} is none of this server's")
    return f"{found[1]}-m{int(found[2])}"


def model_id_of(model: str) -> str:
    """In the protocol."""
    session, _, number = model.rpartition("-m")
    return f"{session}:train:{number}"


def command_of(model: str, number: int) -> str:
    """A model's command."""
    return f"{model}-{number:06d}"


def path_of(model: str, kind: CommandKind, name: str) -> str:
    """Of saved weights. Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"path {name!r}: give a name of up to 128 letters, digits, '.', '_' and '-'")
    return f"tinker://{model_id_of(model)}/{FOLDERS[kind]}/{name}"


def sampler_of(session: str, number: int, version: int, *, saved: bool = False) -> str:
    """A sampling session. number: of the client's; saved: of its command that saved the weights."""
    return f"{session}:{'save' if saved else 'sample'}:{number}:v{version}"


def version_of(sampler: str) -> int:
    """The weights of a sampling session. Raises InvalidValue."""
    found = _SAMPLER.fullmatch(sampler)
    if found is None:
        raise InvalidValue(f"sampling_session_id {sampler!r} is none of this server's")
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Samples:
    """What a call of `sample` asks for: `count` rollouts of purpose `call`, of one group."""

    group: str
    count: int

    @classmethod
    def asked(cls, sampler: str, number: int, version: int, count: int) -> "Samples":
        """number: of the sampling session's calls: the same number is the same call."""
        digest = hashlib.sha256(f"{sampler} {number}".encode()).hexdigest()
        return cls(call_group_id(version, digest, evaluation=False), count)

    @classmethod
    def of(cls, future: str) -> "Samples | None":
        """None where the future is of a command."""
        found = _FUTURE.fullmatch(future)
        return None if found is None else cls(found[1], int(found[2]))

    @property
    def future(self) -> str:
        """Its id in the protocol."""
        return f"{self.group}:{self.count}"

    @property
    def ids(self) -> list[str]:
        """Of the samples; in the protocol their sequence ids."""
        return [sample_id(self.group, index) for index in range(self.count)]


def check_command(future: str) -> str:
    """The command that a future is of. Raises InvalidValue."""
    if not _COMMAND.fullmatch(future):
        raise InvalidValue(f"request_id {future!r} is none of this server's")
    return future
