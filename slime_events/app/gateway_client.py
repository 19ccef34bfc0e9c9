"""`GatewayClient`, `AsyncGatewayClient`: Python clients of a run's gateway, for producers (docs/gateway.md).

They need `httpx`. A request is sent again until the gateway replies: keys make that safe. A client does not wait for a
run that has made all its steps, by its gateway's reply or by the run's folder on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from schemas.doc import doc
from schemas.errors import (
    AccessDenied,
    InboxFull,
    InvalidValue,
    LogUnavailable,
    MissingPart,
    RunIsOver,
    RunNotFound,
    SlimeEventsError,
)
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, Fate, InboxFate, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.submission import Submission
from slime_events.app.harness_http import Reply, no_reply, reply_of

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
WAIT_S, TIMEOUT_S, PAUSE_S, MOST_PAUSE_S = 300.0, 60.0, 0.5, 10.0
BUSY = (429, 503)
FINAL = (Fate.REJECTED, Fate.TRAINED)
HERE = ("127.0.0.1", "localhost", "::1")
"""Hosts whose runs may have a folder below the working directory."""
_log = logging.getLogger(__name__)
Item = Mapping[str, Any]
"""An item as a plain dict with the fields of its struct."""


class _Request(NamedTuple):
    method: str
    path: str
    data: Annotated[bytes | None, doc("Body")] = None


_Exchange = Generator[_Request | float, Reply | None, T]
"""Yields requests and pauses in seconds, receives replies, and returns the decoded last reply."""


def _exchange(request: _Request, kind: type[T], wait_s: float) -> _Exchange[T]:
    """Send a request until the gateway accepts or refuses it. Raises the error of its status."""
    end, pause, has_warned = time.monotonic() + wait_s, PAUSE_S, False
    while True:
        reply = yield request
        assert reply is not None
        if reply.status and reply.status not in BUSY:
            return msgspec.json.decode(_checked(reply), type=kind)
        if time.monotonic() > end:
            error = InboxFull if reply.status == 429 else LogUnavailable
            raise error(f"the gateway has not accepted the request within {wait_s:.0f} s: {reply.reason}")
        if not has_warned:
            _log.warning("the gateway is not ready (%s): retrying for at most %.0f s", reply.reason, wait_s)
            has_warned = True
        yield reply.again_s or pause
        pause = min(2 * pause, MOST_PAUSE_S)


def _checked(reply: Reply) -> bytes:
    """Return the body of a result. A 422, which names refused items, is one, and so is a 409 about reused keys."""
    if reply.status < 300 or reply.status == 422 or (reply.status == 409 and reply.error is None):
        return reply.body
    kinds = {401: AccessDenied, 403: AccessDenied, 404: RunNotFound, 409: RunIsOver}
    raise kinds.get(reply.status, InvalidValue)(f"the gateway replied {reply.status}: {reply.reason}")


def _check_not_finished(url: str, run: str) -> None:
    """Raise RunIsOver if the run's folder is on this machine and shows that the run has made all its steps."""
    if urlsplit(url).hostname not in HERE:
        return
    from slime_events.app.cli.run_list import summarised  # imported late: most clients do not need it
    from slime_events.core.run.run_folder import find_run
    from slime_events.model.run_status import RunStatus

    try:
        folder = find_run(run)
    except SlimeEventsError:  # it is in another folder, or on another machine
        return
    row = summarised(folder)
    if row is not None and row.status is RunStatus.FINISHED:
        raise RunIsOver(
            f"run {run} has finished all its steps, and no gateway replies at {url}: start `slime-events gateway "
            f"{run}` to read the fates of its prompts, or `slime-events resume {run} --num-rollout N` to train on more"
        )


class _Client:
    """The requests of both clients, which differ in how they wait."""

    _kind = ""
    """Name of httpx's client class."""

    def __init__(
        self,
        url: str,
        run: str,
        token: str,
        *,
        wait_s: float = WAIT_S,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingPart("GatewayClient needs httpx: pip install 'slime-events[client]'") from error
        self._url, self._run, self._wait_s, self._lost = url, run, wait_s, httpx.TransportError
        headers = {"authorization": f"Bearer {token}", "content-type": "application/x-ndjson"}
        make: Any = getattr(httpx, self._kind)
        self._http: Any = make(base_url=url, headers=headers, timeout=timeout_s, transport=transport)

    def _sent(self, kind: str, items: Iterable[Any]) -> _Exchange[Submission]:
        lines = b"\n".join(msgspec.json.encode(item) for item in items)
        return _exchange(_Request("POST", f"/v1/runs/{self._run}/{kind}", lines), Submission, self._wait_s)

    def _read(self, group: str) -> _Exchange[InboxFate]:
        return _exchange(_Request("GET", f"/v1/runs/{self._run}/groups/{group}"), InboxFate, self._wait_s)

    def _no_reply(self, error: Exception) -> Reply:
        """Return a reply with status 0 for a transport error. Raises RunIsOver."""
        _check_not_finished(self._url, self._run)
        return no_reply(error, f"{self._url}: ")


class GatewayClient(_Client):
    """A client of a run's gateway. Use it as a context manager, or call `close`.

    url: address of the gateway. token: token of a source of the run. wait_s: seconds to retry a request while the
    gateway or its run is unavailable or full. timeout_s: seconds to wait for one reply.

    Items are structs (`InboxPrompt`, `OutsideGroup`, `OutsideReward`) or dicts with the same fields. Every method
    raises AccessDenied, RunNotFound, InvalidValue, RunIsOver, and after `wait_s` LogUnavailable or InboxFull.
    """

    _kind = "Client"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, prompts: Iterable[InboxPrompt | Item]) -> Submission:
        """Send prompts; returns the accepted prompts, and the refused ones with reasons."""
        return self._done(self._sent(PROMPTS, prompts))

    def trajectories(self, groups: Iterable[OutsideGroup | Item]) -> Submission:
        """Send finished groups."""
        return self._done(self._sent(TRAJECTORIES, groups))

    def rewards(self, rewards: Iterable[OutsideReward | Item]) -> Submission:
        """Send rewards of finished samples that wait for one."""
        return self._done(self._sent(REWARDS, rewards))

    def fate(self, group: str) -> InboxFate:
        """Return the current fate of a group."""
        return self._done(self._read(group))

    def follow(self, group: str, every_s: float = 1.0) -> Iterator[InboxFate]:
        """Yield each change of a group's fate, until it is rejected or trained on. every_s: seconds between reads."""
        last: InboxFate | None = None
        while last is None or last.fate not in FINAL:
            if last is not None:
                time.sleep(every_s)
            if (now := self.fate(group)) != last:
                yield now
            last = now

    def _done(self, exchange: _Exchange[T]) -> T:
        reply: Reply | None = None
        while True:
            try:
                step = exchange.send(reply)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            reply = self._act(step)

    def _act(self, step: _Request | float) -> Reply | None:
        if isinstance(step, float):
            time.sleep(step)
            return None
        try:
            return reply_of(self._http.request(step.method, step.path, content=step.data))
        except self._lost as error:
            return self._no_reply(error)


class AsyncGatewayClient(_Client):
    """`GatewayClient` for asyncio."""

    _kind = "AsyncClient"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(self, prompts: Iterable[InboxPrompt | Item]) -> Submission:
        """Send prompts; see `GatewayClient.submit`."""
        return await self._done(self._sent(PROMPTS, prompts))

    async def trajectories(self, groups: Iterable[OutsideGroup | Item]) -> Submission:
        """Send finished groups; see `GatewayClient.trajectories`."""
        return await self._done(self._sent(TRAJECTORIES, groups))

    async def rewards(self, rewards: Iterable[OutsideReward | Item]) -> Submission:
        """Send rewards; see `GatewayClient.rewards`."""
        return await self._done(self._sent(REWARDS, rewards))

    async def fate(self, group: str) -> InboxFate:
        """Return the current fate of a group."""
        return await self._done(self._read(group))

    async def follow(self, group: str, every_s: float = 1.0) -> AsyncIterator[InboxFate]:
        """Yield each change of a group's fate; see `GatewayClient.follow`."""
        last: InboxFate | None = None
        while last is None or last.fate not in FINAL:
            if last is not None:
                await asyncio.sleep(every_s)
            if (now := await self.fate(group)) != last:
                yield now
            last = now

    async def _done(self, exchange: _Exchange[T]) -> T:
        reply: Reply | None = None
        while True:
            try:
                step = exchange.send(reply)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            reply = await self._act(step)

    async def _act(self, step: _Request | float) -> Reply | None:
        if isinstance(step, float):
            await asyncio.sleep(step)
            return None
        try:
            return reply_of(await self._http.request(step.method, step.path, content=step.data))
        except self._lost as error:
            return self._no_reply(error)
