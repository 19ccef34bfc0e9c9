"""`GatewayClient`, `AsyncGatewayClient`: a run's gateway for producers in Python (docs/gateway.md).

It needs `httpx`. Whatever goes wrong on the way is sent again until there is an answer: keys make that safe. A run that
has made all its steps is not waited for: its gateway says so, or the run's folder if it is here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

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

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
WAIT_S, TIMEOUT_S, PAUSE_S, MOST_PAUSE_S = 300.0, 60.0, 0.5, 10.0
BUSY = (429, 503)
FINAL = (Fate.REJECTED, Fate.TRAINED)
HERE = ("127.0.0.1", "localhost", "::1")
"""Hosts whose runs may have a folder below the working directory."""
_log = logging.getLogger(__name__)
Given = Mapping[str, Any]
"""An item as a plain dict, in the place of its struct."""


class _Ask(NamedTuple):
    """A request. data: its body."""

    method: str
    path: str
    data: bytes | None = None


class _Said(NamedTuple):
    """An answer; status 0: there was none. again_s: when to come again, if it says so."""

    status: int
    body: bytes
    again_s: float | None = None


_Exchange = Generator[_Ask | float, _Said | None, T]
"""Yields requests and pauses in seconds, is sent answers, and returns what the last one says."""


def _patient(ask: _Ask, kind: type[T], wait_s: float) -> _Exchange[T]:
    """Until the gateway has said yes or no. Raises what the status means."""
    end, pause, is_told = time.monotonic() + wait_s, PAUSE_S, False
    while True:
        said = yield ask
        assert said is not None
        if said.status and said.status not in BUSY:
            return msgspec.json.decode(_checked(said), type=kind)
        if time.monotonic() > end:
            error = InboxFull if said.status == 429 else LogUnavailable
            raise error(f"the gateway does not take it after {wait_s:.0f} s: {_why(said)}")
        if not is_told:
            _log.warning("the gateway does not take it now (%s): it is asked again, %.0f s at most", _why(said), wait_s)
            is_told = True
        yield said.again_s or pause
        pause = min(2 * pause, MOST_PAUSE_S)


def _checked(said: _Said) -> bytes:
    """422 is an answer too: it names what was not taken. So is a 409 about keys that stand for something else."""
    if said.status < 300 or said.status == 422 or (said.status == 409 and _error_of(said) is None):
        return said.body
    kinds = {401: AccessDenied, 403: AccessDenied, 404: RunNotFound, 409: RunIsOver}
    raise kinds.get(said.status, InvalidValue)(f"the gateway says {said.status}: {_why(said)}")


def _why(said: _Said) -> str:
    if not said.status:
        return said.body.decode()
    error = _error_of(said)
    return said.body[:200].decode(errors="replace") if error is None else error


def _error_of(said: _Said) -> str | None:
    """None for an answer that is no error."""
    try:
        return str(msgspec.json.decode(said.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


def _check_goes_on(url: str, run: str) -> None:
    """Raises RunIsOver where the run's folder is here and says that it has made all its steps."""
    if urlsplit(url).hostname not in HERE:
        return
    from slime_events.app.cli.run_list import summarised  # most clients need neither
    from slime_events.app.launch.run_status import RunStatus
    from slime_events.core.run.run_folder import find_run

    try:
        folder = find_run(run)
    except SlimeEventsError:  # it is in another folder, or on another machine
        return
    row = summarised(folder)
    if row is not None and row.status is RunStatus.FINISHED:
        raise RunIsOver(
            f"run {run} has finished all its steps, and no gateway of it answers at {url}: "
            f"`slime-events gateway {run}` tells what became of its prompts, and "
            f"`slime-events resume {run} --num-rollout N` takes more"
        )


def _said(answer: httpx.Response) -> _Said:
    again = answer.headers.get("retry-after", "")
    return _Said(answer.status_code, answer.content, float(again) if again.isdecimal() else None)


class _Client:
    """What both clients ask. They differ in how they wait."""

    _kind = ""
    """httpx's client."""

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
        return _patient(_Ask("POST", f"/v1/runs/{self._run}/{kind}", lines), Submission, self._wait_s)

    def _asked(self, group: str) -> _Exchange[InboxFate]:
        return _patient(_Ask("GET", f"/v1/runs/{self._run}/groups/{group}"), InboxFate, self._wait_s)

    def _no_answer(self, error: Exception) -> _Said:
        """Raises RunIsOver."""
        _check_goes_on(self._url, self._run)
        return _Said(0, f"{self._url}: {type(error).__name__}: {error}".encode())


class GatewayClient(_Client):
    """As a context manager, or `close` it. url: of the gateway. token: of a source of the run. wait_s: how long it is
    asked again while the gateway, or its run, is away or full.

    Items are structs (`InboxPrompt`, `OutsideGroup`, `OutsideReward`) or dicts of the same fields. Every method raises
    AccessDenied, RunNotFound, InvalidValue, RunIsOver, and LogUnavailable or InboxFull once `wait_s` is over.
    """

    _kind = "Client"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def submit(self, prompts: Iterable[InboxPrompt | Given]) -> Submission:
        """Prompts in; which were taken, and which were not and why."""
        return self._done(self._sent(PROMPTS, prompts))

    def trajectories(self, groups: Iterable[OutsideGroup | Given]) -> Submission:
        """Finished groups in."""
        return self._done(self._sent(TRAJECTORIES, groups))

    def rewards(self, rewards: Iterable[OutsideReward | Given]) -> Submission:
        """Rewards of finished samples that wait for them."""
        return self._done(self._sent(REWARDS, rewards))

    def fate(self, group: str) -> InboxFate:
        """What became of a group."""
        return self._done(self._asked(group))

    def follow(self, group: str, every_s: float = 1.0) -> Iterator[InboxFate]:
        """Each change of it, until it is rejected or trained on."""
        last: InboxFate | None = None
        while last is None or last.fate not in FINAL:
            if last is not None:
                time.sleep(every_s)
            if (now := self.fate(group)) != last:
                yield now
            last = now

    def _done(self, exchange: _Exchange[T]) -> T:
        said: _Said | None = None
        while True:
            try:
                step = exchange.send(said)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            said = self._act(step)

    def _act(self, step: _Ask | float) -> _Said | None:
        if isinstance(step, float):
            time.sleep(step)
            return None
        try:
            return _said(self._http.request(step.method, step.path, content=step.data))
        except self._lost as error:
            return self._no_answer(error)


class AsyncGatewayClient(_Client):
    """`GatewayClient` for asyncio."""

    _kind = "AsyncClient"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def submit(self, prompts: Iterable[InboxPrompt | Given]) -> Submission:
        """As `GatewayClient.submit`."""
        return await self._done(self._sent(PROMPTS, prompts))

    async def trajectories(self, groups: Iterable[OutsideGroup | Given]) -> Submission:
        """As `GatewayClient.trajectories`."""
        return await self._done(self._sent(TRAJECTORIES, groups))

    async def rewards(self, rewards: Iterable[OutsideReward | Given]) -> Submission:
        """As `GatewayClient.rewards`."""
        return await self._done(self._sent(REWARDS, rewards))

    async def fate(self, group: str) -> InboxFate:
        """As `GatewayClient.fate`."""
        return await self._done(self._asked(group))

    async def follow(self, group: str, every_s: float = 1.0) -> AsyncIterator[InboxFate]:
        """As `GatewayClient.follow`."""
        last: InboxFate | None = None
        while last is None or last.fate not in FINAL:
            if last is not None:
                await asyncio.sleep(every_s)
            if (now := await self.fate(group)) != last:
                yield now
            last = now

    async def _done(self, exchange: _Exchange[T]) -> T:
        said: _Said | None = None
        while True:
            try:
                step = exchange.send(said)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            said = await self._act(step)

    async def _act(self, step: _Ask | float) -> _Said | None:
        if isinstance(step, float):
            await asyncio.sleep(step)
            return None
        try:
            return _said(await self._http.request(step.method, step.path, content=step.data))
        except self._lost as error:
            return self._no_answer(error)
