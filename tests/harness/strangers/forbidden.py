"""Acts that the server must refuse to holders of a producer's, a gateway's, a viewer's or no credentials.

`commit_all` does them, on an idle server or during a run, and names those that were not refused. It checks for the
server's message (`Permissions Violation`), and for the absence of effects: records, streams, consumers and messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors

from schemas.registry import NOUNS
from schemas.subjects import inbox, notifications, stream_name
from storage.jetstream.address import NatsAddress
from storage.jetstream.connection import REFUSED, Connection
from storage.jetstream.error_codes import ErrorCode
from storage.nats.accounts import READERS, Access

MARK = "stranger"
"""In everything that is sent, and the name of everything that is to be made."""


@dataclass(frozen=True, slots=True)
class Act:
    """who: None for no credentials. listens: subscribe to the subject, in that queue; otherwise publish to it."""

    who: Access | None
    subject: str
    body: Any = MARK
    listens: bool = False
    queue: str = ""

    @property
    def kind(self) -> str:
        """Return the kind as the server's message names it."""
        return "subscription" if self.listens else "publish"

    def __str__(self) -> str:
        return f"{self.who or 'nobody'} {'subscribes to' if self.listens else 'publishes on'} {self.subject}"


def acts_of(run: str) -> list[Act]:
    """All of them. At least forty are a producer's."""
    readers = [act for who in READERS for act in _of_reader(run, who)]
    return [*_of_producer(run), *readers, Act(None, inbox(run)), Act(None, f"$JS.API.STREAM.INFO.{_s(run)}")]


def _s(run: str) -> str:
    return stream_name(run)


def _api(run: str) -> list[tuple[str, Any]]:
    """JetStream's requests that change something or hand out what is somebody else's, and their bodies."""
    stream, consumer = _s(run), {"durable_name": MARK, "name": MARK, "ack_policy": "explicit", "deliver_policy": "all"}
    creation = {"stream_name": stream, "config": consumer}
    return [
        (f"STREAM.CREATE.{MARK}", {"name": MARK, "subjects": [f"{MARK}.>"]}),
        (f"STREAM.UPDATE.{stream}", {"name": stream, "subjects": [f"{MARK}.>"]}),
        (f"STREAM.DELETE.{stream}", None),
        (f"STREAM.PURGE.{stream}", {}),
        (f"STREAM.MSG.DELETE.{stream}", {"seq": 1}),
        (f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": f"_INBOX.{MARK}"}),
        (f"STREAM.RESTORE.{MARK}", {"config": {"name": MARK}, "state": {}}),
        (f"STREAM.LEADER.STEPDOWN.{stream}", {}),
        (f"CONSUMER.CREATE.{stream}.{MARK}", creation),
        (f"CONSUMER.CREATE.{stream}.{MARK}.slime.{run}.>", creation),
        (f"CONSUMER.DURABLE.CREATE.{stream}.{MARK}", creation),
        (f"CONSUMER.DELETE.{stream}.engines", None),
        (f"CONSUMER.MSG.NEXT.{stream}.engines", {"batch": 1000, "no_wait": True}),
        (f"CONSUMER.PAUSE.{stream}.engines", {"pause_until": "2100-01-01T00:00:00Z"}),
        (f"CONSUMER.INFO.{stream}.engines", None),
    ]


def _of_producer(run: str) -> list[Act]:
    stream = _s(run)
    nouns = [f"slime.{run}.{noun}.published.v9" for noun in NOUNS]
    reads = [f"STREAM.INFO.{stream}", f"STREAM.MSG.GET.{stream}", f"DIRECT.GET.{stream}", "STREAM.LIST", "INFO"]
    others = [f"slime.{run}.inbox.launcher", f"slime.{run}-2.inbox.prompts", f"$JS.ACK.{stream}.engines.1.1.1.1.0"]
    system = ["$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", f"_INBOX.{MARK}", f"_R_.{MARK}"]
    heard = [">", "*", "slime.>", f"slime.{run}.>", f"slime.{run}.rollout.>", f"slime.{run}.inbox.*", inbox(run)]
    heard += ["$JS.>", "$JS.API.>", "$JS.ACK.>", f"$JS.ACK.{stream}.>", "$SYS.>", "_R_.>", "_INBOX_roles.>"]
    return [
        *(Act(Access.PRODUCER, subject) for subject in (*nouns, *others, *system)),
        *(Act(Access.PRODUCER, f"$JS.API.{subject}", {"seq": 1}) for subject in reads),
        *(Act(Access.PRODUCER, f"$JS.API.{subject}", body) for subject, body in _api(run)),
        *(Act(Access.PRODUCER, subject, listens=True) for subject in heard),
        Act(Access.PRODUCER, inbox(run), listens=True, queue="thieves"),
    ]


def _of_reader(run: str, who: Access) -> list[Act]:
    nouns = [f"slime.{run}.{noun}.published.v9" for noun in NOUNS]
    heard = [">", f"slime.{run}.>", f"{notifications(run, MARK)}.*", inbox(run), "$JS.>", "$SYS.>", "_R_.>"]
    others = [
        inbox(run),
        inbox(run, "groups"),
        f"{notifications(run, MARK)}.event",
        f"$JS.ACK.{_s(run)}.engines.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
    ]
    others += [inbox(run, "gateway")] if who is Access.VIEWER else []
    return [
        *(Act(who, subject) for subject in (*nouns, *others)),
        *(Act(who, f"$JS.API.{subject}", body) for subject, body in _api(run)),
        *(Act(who, subject, listens=True) for subject in heard),
    ]


async def commit_all(run: str, address_of: Callable[[Access], NatsAddress]) -> list[str]:
    """Do all acts and return those that were not refused, and their effects. address_of: the address by role."""
    roles = await Connection.open(address_of(Access.ROLES), deadline_s=10, retry_s=10, on_wait=lambda _: None)
    try:
        before = await _standing(roles, run)
        let = []
        for who in (Access.PRODUCER, *READERS, None):
            acts = [act for act in acts_of(run) if act.who is who]
            let += await (_committed(acts, address_of(who), roles) if who else _unknown(acts, address_of(Access.ROLES)))
        after = await _standing(roles, run)
        if before != after:
            return [*let, f"the stream or its consumers changed: {before} was {after}"]
        return let + await _left(roles, run)
    finally:
        await roles.close()


async def _committed(acts: list[Act], address: NatsAddress, roles: Connection) -> list[str]:
    refused: set[tuple[str, ...]] = set()

    async def note(error: Exception) -> None:
        if match := REFUSED.search(str(error).lower()):
            refused.add(match.groups())

    client = await nats.connect(**address.options(), allow_reconnect=False, error_cb=note)
    heard = [await client.subscribe(act.subject, act.queue) for act in acts if act.listens]
    for act in acts:
        if not act.listens:
            body = json.dumps(act.body) if isinstance(act.body, dict) else act.body or ""
            await client.publish(act.subject, body.encode(), reply=f"_INBOX.{MARK}")
    await client.flush()
    for subject in (inbox(MARK), f"{MARK}.said"):  # something to hear
        await roles.publish(subject, b"")
    await roles.client.flush()
    await client.flush()
    let = [str(act) for act in acts if (act.kind, act.subject.lower()) not in refused]
    let += [f"{sub.subject}: {sub.pending_msgs} messages were heard" for sub in heard if sub.pending_msgs]
    await client.close()
    return let


async def _unknown(acts: list[Act], address: NatsAddress) -> list[str]:
    """Nobody is connected without a password, nor with a wrong one."""
    url, let = address.url, []
    for options in ({}, {"user": "roles", "password": MARK}, {"user": "roles"}, {"token": MARK}):
        try:
            client = await nats.connect(url, allow_reconnect=False, error_cb=_silent, **options)
        except nats.errors.Error:
            continue
        let += [f"{act}: connected with {list(options)}" for act in acts]
        await client.close()
    return let


async def _silent(error: Exception) -> None:
    pass


async def _standing(roles: Connection, run: str) -> tuple[Any, ...]:
    """Return what no act may change: the stream's configuration and first record, its consumers, and the streams."""
    info = await roles.api(f"STREAM.INFO.{_s(run)}", absent=ErrorCode.JSStreamNotFoundErr)
    if info is None:
        return ("gone",)
    consumers = await roles.api(f"CONSUMER.NAMES.{_s(run)}", {})
    streams = await roles.api("STREAM.NAMES", {})
    return (
        info["config"],
        info["state"]["first_seq"],
        info["state"].get("num_deleted", 0),
        [name for name in consumers["consumers"] or () if MARK in name],
        sorted(streams["streams"]),
    )


async def _left(roles: Connection, run: str) -> list[str]:
    """Records on the subjects that were published on."""
    let = []
    for subject in {act.subject for act in acts_of(run) if not act.listens and act.subject.startswith("slime.")}:
        if await roles.direct_get(_s(run), {"last_by_subj": subject}):
            let.append(f"there is a record on {subject}")
    return let
