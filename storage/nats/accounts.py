"""Accounts of a run's NATS server and their permissions: for the run's roles, producers, gateways and viewers.

Each has a credentials file in the server's folder, which only the run's owner may read:

    roles.json      run, url, user, password: everything on the run's stream
    producer.json   send prompts and queries to the inbox, receive replies and the fates of prompts
    gateway.json    send for other producers (`slime-events gateway`), also while no conductor is running, and read the
                    stream; in a run with --agents also append the events of agents' sessions, receive notifications of
                    their turns' events, and send early requests to engines
    viewer.json     read the stream

They are accounts, not users of one account, because a client chooses the subject of an answer. Within one account it
could choose a subject of the stream, which would store the answer (decision 0025).
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.subjects import past_stream_name, pattern, stream_name
from storage.jetstream.address import NatsAddress, read_credentials

ACCOUNT = "SLIME"
"""Account of the roles. It owns the streams, in `jetstream/SLIME/`."""
OLD_ACCOUNT = "$G"
"""Account that owned the streams before servers had credentials."""
API, REPLIES = "$JS.API.>", "_INBOX.>"
AGENTS = "agents"
"""Key in the gateway's file: it serves agents' sessions."""
EVERY_RUN = "*"
"""Wildcard for a run's name."""


class Access(enum.StrEnum):
    """Kind of credentials. The value is the name of the file."""

    ROLES = "roles"
    PRODUCER = "producer"
    GATEWAY = "gateway"
    VIEWER = "viewer"


READERS = (Access.GATEWAY, Access.VIEWER)
"""Kinds for which the server refuses consumers."""


def user_of(access: Access) -> str:
    """Return the user's name, unique on the server."""
    return f"slime-{access}"


def inboxes(run: str) -> list[str]:
    """Return the subjects of a producer's requests. run: a name or EVERY_RUN."""
    return [pattern(run, "inbox", what) for what in ("prompts", "trajectories", "rewards", "groups")]


def fates_of_producers(run: str) -> str:
    """Return the subject on which producers receive the fates of their prompts. run: a name or EVERY_RUN."""
    return pattern(run, "fates", "nats")


def inbox_of_gateway(run: str) -> str:
    """Return the subject of prompts that a gateway sends for producers. run: a name or EVERY_RUN."""
    return pattern(run, "inbox", "gateway")


def sessions(run: str) -> list[str]:
    """Return the subjects of events in an agent's session, for gateways with --agents. run: a name or EVERY_RUN."""
    events = ("session.*", "turn.*", "rollout.requested", "rollout.completed", "rollout.failed", "reward.assigned")
    return [subject for type_ in events for subject in _appended(run, type_)]


def offers(run: str) -> list[str]:
    """Return the subjects of events that any gateway may append. run: a name or EVERY_RUN."""
    return _appended(run, "prompt.offered")


def notifications_of_gateways(run: str) -> str:
    """Return the subjects on which gateways receive notifications of stored events. run: a name or EVERY_RUN."""
    return pattern(run, "told", "*", "*")


def early_requests(run: str) -> str:
    """Return the subjects on which a gateway sends early requests to engines. run: a name or EVERY_RUN."""
    return pattern(run, "early", "*", "event")


def _appended(run: str, events: str) -> list[str]:
    """Return the subjects on which events reach the stream, directly or through `schemas.subjects.entrance`."""
    return [pattern(run, events, "*"), pattern(run, "at", "*", events, "*")]


def reads(run: str) -> list[str]:
    """Return the subjects of a viewer's requests; the last finds out whether a launcher is running."""
    streams = [run] if run == EVERY_RUN else [stream_name(run), past_stream_name(run)]
    api = [f"$JS.API.{call}.{name}" for call in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET") for name in streams]
    return [*api, pattern(run, "inbox", "launcher")]


def file_of(folder: Path, access: Access) -> Path:
    return folder / f"{access}.json"


def is_guarded(folder: Path) -> bool:
    """Return whether a server that is started in the folder requires credentials."""
    return file_of(folder, Access.ROLES).is_file()


def guard(folder: Path, run: str, *, agents: bool = False) -> bool:
    """Create missing credentials for the server of a run.

    Return whether a running server must be restarted: credentials were created, or the gateway got agents' permissions.
    """
    is_new = False
    for access in reversed(Access):  # the roles' file is created last: it makes the folder guarded
        if not file_of(folder, access).is_file():
            fields = {"run": run, "url": "", "user": user_of(access), "password": secrets.token_urlsafe(24)}
            more = {"reads_only": True} if access in READERS else {}
            with contextlib.suppress(FileExistsError):  # another reader is faster
                write_private(file_of(folder, access), _text(fields | more), new=True)
                is_new = True
    gateway = json.loads(file_of(folder, Access.GATEWAY).read_text())
    if agents and not gateway.get(AGENTS):
        write_private(file_of(folder, Access.GATEWAY), _text(gateway | {AGENTS: True}))
        is_new = True
    return is_new


def read_access(folder: Path, access: Access, url: str) -> NatsAddress:
    """Return the address of the folder's server at a URL, with credentials if it has some."""
    path = file_of(folder, access)
    return read_credentials(path, url) if path.is_file() else NatsAddress(url=url)


def note_url(folder: Path, url: str, ca: str = "") -> None:
    """Write the URL into each file, so that a producer outside needs nothing else. ca: PEM text to verify it with."""
    for access in Access:
        fields = json.loads(file_of(folder, access).read_text())
        if (fields["url"], fields.get("ca", "")) != (url, ca):
            others = {name: value for name, value in fields.items() if name != "ca"}
            write_private(file_of(folder, access), _text(others | {"url": url} | ({"ca": ca} if ca else {})))


def noted_url(folder: Path) -> str:
    """Return the last URL of the folder's server, or an empty text if it is unknown."""
    path = file_of(folder, Access.ROLES)
    return str(json.loads(path.read_text())["url"]) if path.is_file() else ""


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


def write_private(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file atomically that only its owner may read. new: raise FileExistsError if it exists."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    try:
        if new:
            path.hardlink_to(part)
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def accounts_of(folder: Path) -> str:
    """Return the server configuration with the accounts of a guarded folder."""
    files = {access: json.loads(file_of(folder, access).read_text()) for access in Access}
    passwords = {access: json.dumps(file["password"]) for access, file in files.items()}
    agents = bool(files[Access.GATEWAY].get(AGENTS))
    return accounts_text(files[Access.ROLES]["run"], passwords, agents=agents)


def accounts_text(run: str, passwords: Mapping[Access, str], *, agents: bool = False) -> str:
    """Return the server configuration with one user per kind of credentials.

    run: a name or EVERY_RUN. passwords: in the configuration's syntax. agents: the gateway may append the events of
    agents' sessions.

    A reader's account imports the whole API, because a partial import would compete with the server's own answers. The
    user's permissions restrict it.
    """
    asks = {
        Access.PRODUCER: inboxes(run),
        Access.GATEWAY: [inbox_of_gateway(run), *offers(run)],
        Access.VIEWER: list[str](),
    }
    asks[Access.GATEWAY] += [*sessions(run), early_requests(run)] if agents else []
    hears = {
        Access.PRODUCER: [fates_of_producers(run)],
        Access.GATEWAY: [notifications_of_gateways(run)] if agents else [],
    }
    exports = [
        *(
            f'{{ service: "{subject}", accounts: [{_account(access)}] }}'
            for access, subjects in asks.items()
            for subject in subjects
        ),
        f'{{ service: "{reads(run)[-1]}", accounts: [{", ".join(map(_account, READERS))}] }}',
        f'{{ service: "{API}", response_type: stream, accounts: [{", ".join(map(_account, READERS))}] }}',
        *(
            f'{{ stream: "{subject}", accounts: [{_account(access)}] }}'
            for access, subjects in hears.items()
            for subject in subjects
        ),
    ]
    roles = f"{{ user: {user_of(Access.ROLES)}, password: {passwords[Access.ROLES]} }}"
    guests = list[str]()
    for access, subjects in asks.items():
        looks = reads(run) if access in READERS else []
        imports = [*([API] if looks else []), *subjects, *looks[-1:]]
        may = [*subjects, *looks]
        guests += _guests(access, passwords[access], may=may, imports=imports, hears=hears.get(access, []))
    return "\n".join(
        (
            "accounts {",
            f"  {ACCOUNT} {{",
            "    jetstream: enabled",
            f"    users: [{roles}]",
            *_lines("exports", exports),
            "  }",
            *guests,
            "}",
        )
    )


def _account(access: Access) -> str:
    """Return `SLIME_PRODUCERS`, `SLIME_GATEWAYS` or `SLIME_VIEWERS`."""
    return f"{ACCOUNT}_{access.name}S"


def _guests(
    access: Access, password: str, *, may: Sequence[str], imports: Sequence[str], hears: Sequence[str]
) -> list[str]:
    publish, subscribe = (", ".join(f'"{subject}"' for subject in some) for some in (may, [REPLIES, *hears]))
    parts = [*(("service", subject) for subject in imports), *(("stream", subject) for subject in hears)]
    return [
        f"  {_account(access)} {{",
        "    users: [{",
        f"      user: {user_of(access)}, password: {password}",
        f"      permissions: {{ publish: [{publish}], subscribe: [{subscribe}] }}",
        "    }]",
        *_lines(
            "imports", [f'{{ {kind}: {{ account: {ACCOUNT}, subject: "{subject}" }} }}' for kind, subject in parts]
        ),
        "  }",
    ]


def _lines(name: str, items: Sequence[str]) -> list[str]:
    return [f"    {name}: [", *(f"      {item}" for item in items), "    ]"]
