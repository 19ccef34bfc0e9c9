"""Who may do what on a run's NATS server: an account for the run's own roles, one for producers, one for viewers.

A file in the server's folder for each, which only the run's owner may read:

    roles.json      run, url, user, password: everything on the run's stream
    producer.json   prompts and questions to the inbox, the replies to them, and what becomes of prompts
    gateway.json    the same in the name of others (`slime-events gateway`), also while nobody conducts the run, and
                    reads the stream; of a run with --agents, appends what is said of agents' sessions, and
                    hears of their turns' events as they come, and tells engines of their requests early
    viewer.json     reads the stream, changes nothing

Accounts, not users of one account: what a client asks the server for is answered on a subject that the client names.
Within one account that could be a subject of the stream, which would store the answer (decision 0025).
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
"""Of the roles. It has the streams, in `jetstream/SLIME/`."""
OLD_ACCOUNT = "$G"
"""Had them while a server admitted everybody."""
API, REPLIES = "$JS.API.>", "_INBOX.>"
AGENTS = "agents"
"""In the gateway's file: it makes sessions of agents."""
EVERY_RUN = "*"
"""In the place of a run's name."""


class Access(enum.StrEnum):
    """Whose credentials. The value is the name of its file."""

    ROLES = "roles"
    PRODUCER = "producer"
    GATEWAY = "gateway"
    VIEWER = "viewer"


READERS = (Access.GATEWAY, Access.VIEWER)
"""The server refuses them consumers."""


def user_of(access: Access) -> str:
    """Its name, which no other account of the server has."""
    return f"slime-{access}"


def inboxes(run: str) -> list[str]:
    """Subjects on which a producer asks. run: or EVERY_RUN."""
    return [pattern(run, "inbox", what) for what in ("prompts", "trajectories", "rewards", "groups")]


def fates_of_producers(run: str) -> str:
    """Subject on which producers are told what becomes of their prompts. run: or EVERY_RUN."""
    return pattern(run, "fates", "nats")


def inbox_of_gateway(run: str) -> str:
    """Subject of prompts that a gateway brings in the name of a sender. run: or EVERY_RUN."""
    return pattern(run, "inbox", "gateway")


def sessions(run: str) -> list[str]:
    """Subjects of the events that make a session of an agent, for gateways of runs with --agents. run: or EVERY_RUN."""
    made = ("session.*", "turn.*", "rollout.requested", "rollout.completed", "rollout.failed", "reward.assigned")
    return [subject for one in made for subject in _appended(run, one)]


def offers(run: str) -> list[str]:
    """Subjects of the events that any gateway may append. run: or EVERY_RUN."""
    return _appended(run, "prompt.offered")


def told_gateways(run: str) -> str:
    """Subjects on which gateways are told of the events of their turns. run: or EVERY_RUN."""
    return pattern(run, "told", "*", "*")


def early_requests(run: str) -> str:
    """Subjects on which a gateway tells engines of requests that it is about to append. run: or EVERY_RUN."""
    return pattern(run, "early", "*", "event")


def _appended(run: str, events: str) -> list[str]:
    """On which they reach the stream. One that lets events go takes them in by a door (`schemas.subjects.entrance`)."""
    return [pattern(run, events, "*"), pattern(run, "at", "*", events, "*")]


def reads(run: str) -> list[str]:
    """Subjects on which a viewer asks. run: or EVERY_RUN. The last tells whether a launcher is on."""
    streams = [run] if run == EVERY_RUN else [stream_name(run), past_stream_name(run)]
    api = [f"$JS.API.{what}.{one}" for what in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET") for one in streams]
    return [*api, pattern(run, "inbox", "launcher")]


def file_of(folder: Path, access: Access) -> Path:
    """Where the credentials are."""
    return folder / f"{access}.json"


def is_guarded(folder: Path) -> bool:
    """Whether a server that is started in the folder admits nobody without credentials."""
    return file_of(folder, Access.ROLES).is_file()


def guard(folder: Path, run: str, *, agents: bool = False) -> bool:
    """Make credentials for the server of a run where there are none. Whether it made some, or gave the gateway what it
    needs for agents: a server that runs already has to start again then.
    """
    is_new = False
    for access in reversed(Access):  # with the roles', the last, the folder is guarded
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
    """The address of the folder's server at a URL, with credentials where it has some."""
    path = file_of(folder, access)
    return read_credentials(path, url) if path.is_file() else NatsAddress(url=url)


def note_url(folder: Path, url: str) -> None:
    """Into each file: a producer outside then needs nothing else."""
    for access in Access:
        fields = json.loads(file_of(folder, access).read_text())
        if fields["url"] != url:
            write_private(file_of(folder, access), _text(fields | {"url": url}))


def noted_url(folder: Path) -> str:
    """Where the folder's server was last; empty where it is not known."""
    path = file_of(folder, Access.ROLES)
    return str(json.loads(path.read_text())["url"]) if path.is_file() else ""


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


def write_private(path: Path, text: str, *, new: bool = False) -> None:
    """A file that only its owner may read, whole under its name or not there. Raises FileExistsError for a `new` one
    that is there.
    """
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
    """The accounts of a guarded folder's server, as configuration."""
    files = {access: json.loads(file_of(folder, access).read_text()) for access in Access}
    passwords = {access: json.dumps(file["password"]) for access, file in files.items()}
    agents = bool(files[Access.GATEWAY].get(AGENTS))
    return accounts_text(files[Access.ROLES]["run"], passwords, agents=agents)


def accounts_text(run: str, passwords: Mapping[Access, str], *, agents: bool = False) -> str:
    """Configuration of a server that admits a user for each access. run: or EVERY_RUN. passwords: as they are to be
    written. agents: the gateway may append what is said of agents' sessions.

    A reader's account imports the whole API, since a part of it would stand beside the server's own answers; which of
    it a reader may use is its permission.
    """
    asks = {
        Access.PRODUCER: inboxes(run),
        Access.GATEWAY: [inbox_of_gateway(run), *offers(run)],
        Access.VIEWER: list[str](),
    }
    asks[Access.GATEWAY] += [*sessions(run), early_requests(run)] if agents else []
    hears = {Access.PRODUCER: [fates_of_producers(run)], Access.GATEWAY: [told_gateways(run)] if agents else []}
    exports = [
        *(f'{{ service: "{one}", accounts: [{_account(access)}] }}' for access, all_ in asks.items() for one in all_),
        f'{{ service: "{reads(run)[-1]}", accounts: [{", ".join(map(_account, READERS))}] }}',
        f'{{ service: "{API}", response_type: stream, accounts: [{", ".join(map(_account, READERS))}] }}',
        *(f'{{ stream: "{one}", accounts: [{_account(access)}] }}' for access, all_ in hears.items() for one in all_),
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
    """PRODUCERS, GATEWAYS, VIEWERS of ACCOUNT."""
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
