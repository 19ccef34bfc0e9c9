"""`Turns`: the turns of sessions over the log. Each is a generation that an engine makes, and is recorded before its
agent is told that it has ended.

    request -> where it goes on -> turn.begun + rollout.requested -> (an engine) -> its tokens, as they come
            -> turn.recorded -> the end of the answer

A request that comes again joins its turn while it is under way, here or where another gateway began it, and is answered
from the log afterwards.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.errors import Conflict, EngineError, InvalidValue, PlugPointError, RequestRefused, StorageError
from schemas.event import Purpose
from schemas.ids import sample_id, turn_group_id
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, TurnEnd
from schemas.subjects import everything_about
from schemas.turns import AgentTurn, TurnBegun, TurnRecorded, TurnRole
from serve_apps.agents.asked import AgentRequest, Answer, BadField
from serve_apps.agents.bridge import Placement
from serve_apps.agents.live_board import LiveBoard
from serve_apps.agents.live_session import LiveSession, LoadedTurn, Turn, TurnKey, TurnRefused, check_open
from serve_apps.agents.off_loop import SMALL, off_loop
from serve_apps.agents.reading import AllRequests
from serve_apps.agents.run_log import RunLog
from serve_apps.agents.setup import AgentSetup
from serve_apps.agents.turn_reader import TurnReader
from serve_apps.calls import Call
from serve_apps.engine.checks import GRAMMARS, check_sampling
from serve_apps.engine.engine import Tokens
from serve_apps.generate.session import read_sampling
from slime_events.core.agent_requests import PackedBody, packed_body
from slime_events.core.state.sessions import Session, read_session
from slime_events.core.vocabulary import token_ids
from slime_events.loop.conductor.draw import sample_seed
from storage.cancellation import end_all
from storage.log import Fence

FROM_THE_RUN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""How tokens are drawn is the run's to say: the trainer takes their log-probs so."""

READY_LOOK_S = 2.0
"""Seconds between two looks whether an engine is ready, for a turn whose time is over."""


class Turns:
    """The turns that one gateway makes. place: the run's log while it is on. board: says whether an engine is ready."""

    def __init__(self, place: RunLog, setup: AgentSetup, board: LiveBoard) -> None:
        self._place, self._setup, self._rules, self._board = place, setup, setup.rules, board
        self.requests = AllRequests()
        self._in_flight = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End what is under way: another gateway goes on with it when it is asked again."""
        await end_all(*self._tasks)
        self._setup.engine.close()

    async def ask(self, live: LiveSession, asked: AgentRequest, body: bytes, key: TurnKey) -> Turn:
        """The turn of a request. Raises TurnRefused, BadField, StorageError."""
        self._check(asked)
        asked = await self._checked(await self._with_ids(asked, len(body)))
        async with live.lock:
            while True:
                if not live.takes_turns:
                    await self._read(live)
                    check_open(live)
                session = live.folded
                before = session.asked(key.digest) if key.is_retry else []
                if before and (turn := await self._again(live, asked, body, before[-1])) is not None:
                    return turn
                try:
                    return await self._begin(live, asked, body, key)
                except Conflict:  # another gateway, or its end, was first
                    await self._read(live)
                    check_open(live)

    async def _checked(self, asked: AgentRequest) -> AgentRequest:
        """A request that engines take, its sampling with the shape of the calls that it asks for. Raises BadField,
        TurnRefused.
        """
        shape = self._setup.parsers.constraint(asked)
        asked = replace(asked, sampling={**asked.sampling, **shape}) if shape else asked
        given = {name: asked.sampling[name] for name in (*GRAMMARS, "stop_token_ids") if name in asked.sampling}
        try:
            if asked.tokens is not None:
                token_ids(asked.tokens, self._setup.engine.vocabulary, "input_ids")
            if given:
                sampling, _ = read_sampling(Sampling(max_new_tokens=1), given)
                await self._setup.engine.check_sampling(sampling)
        except (InvalidValue, PlugPointError) as error:
            raise _bad_field(error) from error
        except EngineError as error:
            raise TurnRefused(429, str(error), again_s=2.0) from error
        return asked

    async def count(self, live: LiveSession, asked: AgentRequest, size: int) -> int:
        """Tokens of the prompt that a request of so many bytes would have. Raises BadField."""
        self._check(asked)
        async with live.lock:
            placed = await self._place_in(live, asked, size)
        return len(placed.observed) + (0 if placed.extends is None else live.end(placed.extends).length)

    def _check(self, asked: AgentRequest) -> None:
        """Raises BadField."""
        self._setup.parsers.check(asked)
        if len(asked.messages) > self._rules.longest:
            raise BadField("messages", f"{len(asked.messages):,} messages: the context has room for fewer")

    async def _with_ids(self, asked: AgentRequest, size: int) -> AgentRequest:
        """A text as its token ids."""
        if asked.text is None:
            return asked
        ids = await off_loop(size, partial(self._setup.bridge.ids, asked.text))
        return replace(asked, tokens=tuple(ids.tolist()), text=None)

    async def _place_in(self, live: LiveSession, asked: AgentRequest, size: int) -> Placement:
        """Where a request stands among the turns that are recorded now, whichever are recorded meanwhile. Its session's
        lock is held, so that nobody else reads or changes `chains`.
        """
        forest = live if size <= SMALL else live.fixed()
        return await off_loop(size, partial(self._setup.bridge.place, asked, forest, live.chains))

    async def _read(self, live: LiveSession) -> None:
        await read_session(self._place.events, live.folded.sample, live.folded)

    async def _begin(self, live: LiveSession, asked: AgentRequest, body: bytes, key: TurnKey) -> Turn:
        """A new turn: that it has begun and its generation, in one append. Raises Conflict."""
        session = live.folded
        placed = await self._place_in(live, asked, len(body))
        check_open(live)
        request = session.request
        assert request is not None
        before = None if placed.extends is None else live.end(placed.extends).length
        length = len(placed.observed) + (before or 0)
        sampling, seed = self._sampling(request.sampling, asked, length)
        index, run = session.next_index, self._place.events.run
        group = turn_group_id(session.sample, index)
        sample = sample_id(group, 0)
        begun = TurnBegun(
            sample=session.sample,
            index=index,
            role=TurnRole.ASSISTANT,
            asked=key.digest,
            engine=self._place.worker.id,
            overlapping=bool(session.open),
            nonce=secrets.token_hex(8),
        )
        call = RolloutRequested(
            sample=sample,
            group=group,
            index=0,
            prompt=pack_tokens(placed.observed),
            after=None if before is None else TurnEnd(session.sample, placed.extends or 0, before),
            sampling=sampling,
            seed=sample_seed(self._rules.seed, sample) if seed is None else seed,
            min_version=request.min_version,
            max_version=request.max_version,
            purpose=Purpose.CALL,
            streams=asked.stream,
        )
        self._admit(length + sampling.max_new_tokens)
        fence = Fence(everything_about(run, session.sample), session.position)
        since = await self._append_begun(session, begun, call, fence)
        return await self._follow(live, index, asked, body, placed, await self._place.call(call, since=since))

    async def _append_begun(self, session: Session, begun: TurnBegun, call: RolloutRequested, fence: Fence) -> int:
        """The position before them."""
        recorded, _ = await self._place.append([begun, call], fence)
        session.apply(recorded)
        return recorded.position - 1

    def _admit(self, tokens: int) -> None:
        most = self._rules.tokens_in_flight
        if self._in_flight and self._in_flight + tokens > most:
            message = f"the turns under way here have {self._in_flight:,} tokens of {most:,} (--agent-tokens-in-flight)"
            raise TurnRefused(429, f"{message}: come again when some of them have ended", again_s=2.0)

    def _sampling(self, run: Sampling, asked: AgentRequest, prompt: int) -> tuple[Sampling, int | None]:
        """The run's, with what a request may say; and its seed. Raises BadField, TurnRefused."""
        own = {name: value for name, value in asked.sampling.items() if name not in FROM_THE_RUN}
        most = min(run.max_new_tokens, own.get("max_new_tokens") or run.max_new_tokens)
        if self._rules.context is not None:
            most = min(most, self._rules.context - prompt)
        if most < 1:
            raise BadField("messages", f"the prompt has {prompt} tokens, and the context {self._rules.context}")
        if "stop" in own:
            own["stop"] = [*run.stop, *(stop for stop in own["stop"] if stop not in run.stop)]
        try:
            sampling, seed = read_sampling(run, own | {"max_new_tokens": most})
            check_sampling(sampling, self._setup.engine.vocabulary)
        except (InvalidValue, PlugPointError) as error:
            raise _bad_field(error) from error
        return sampling, seed

    async def _again(self, live: LiveSession, asked: AgentRequest, body: bytes, index: int) -> Turn | None:
        """A turn that was asked for before; None where there is nothing of it to go on with."""
        if (turn := live.under_way.get(index)) is not None:
            return turn
        session = live.folded
        if index in session.turns:
            known = live.turn(index)
            prompt = live.prompt(known.extends, known.observed).whole()
            return Turn(*self._told(session, index), asked, prompt, self._stops(session, asked), recorded=known)
        call = await self._place.read_call(sample_id(turn_group_id(session.sample, index), 0))
        if call is None:
            return None
        prompt = self._prompt_of(live, call)
        placed = await self._place_in(live, asked, len(body))
        if not np.array_equal(live.prompt(placed.extends, placed.observed).whole(), prompt):
            tokens = replace(asked, tokens=tuple(prompt.tolist()), messages=())
            by_tokens = self._setup.bridge.place(tokens, live)
            placed = replace(by_tokens, chain=placed.chain, messages=placed.chain.links)
        return await self._follow(live, index, asked, body, placed, call)

    async def _follow(
        self, live: LiveSession, index: int, asked: AgentRequest, body: bytes, placed: Placement, call: Call
    ) -> Turn:
        prompt, stops = self._prompt_of(live, call), self._stops(live.folded, asked)
        turn = Turn(*self._told(live.folded, index), asked, prompt, stops, call)
        requests = self.requests.of(live.name)
        alike = placed.nearest if placed.extends is None else placed.extends
        packed = packed_body(body, requests.bodies, alike)
        requests.keep(index, body)
        turn.task = asyncio.create_task(self._record(live, index, turn, placed, packed), name=turn.id)
        live.under_way[index] = turn
        self._tasks.add(turn.task)
        self._in_flight += (tokens := len(prompt) + call.request.sampling.max_new_tokens)

        def ended(task: asyncio.Task[LoadedTurn]) -> None:
            self._in_flight -= tokens
            self._tasks.discard(task)
            live.under_way.pop(index, None)
            self._place.calls.close(call.request.sample)
            if not task.cancelled():
                task.exception()  # whoever waits for it is told

        turn.task.add_done_callback(ended)
        return turn

    def _prompt_of(self, live: LiveSession, call: Call) -> Tokens:
        after = call.request.after
        return live.prompt(None if after is None else after.turn, self._setup.fetch(call.request.prompt)).whole()

    async def _record(
        self, live: LiveSession, index: int, turn: Turn, placed: Placement, packed: PackedBody
    ) -> LoadedTurn:
        """Wait for the engine, and append what it said. Goes on when the client has gone."""
        call, began = turn.call, time.perf_counter()
        assert call is not None
        try:
            completed = await self._ended(call)
        except TimeoutError:
            await self._place.calls.abort(call, "its turn took too long")
            message = f"no engine ended the turn within {self._rules.limits.turn_s:g} s (--agent-turn-seconds)"
            raise TurnRefused(504, message) from None
        except RequestRefused as error:  # so will the next one be: no client comes again after 400
            raise TurnRefused(400, str(error)) from error
        except EngineError as error:
            raise TurnRefused(502, str(error)) from error
        if completed is None:
            raise TurnRefused(409, "the session was sealed while the turn was under way")
        known, spans = call.known, call.known.spans
        reader = self.reader(turn)
        reader.feed(known.tokens.tolist(), known.log_probs.tolist())
        reader.end(completed.stop)
        event = TurnRecorded(
            sample=live.folded.sample,
            index=index,
            role=TurnRole.ASSISTANT,
            asked=live.folded.open[index].key if index in live.folded.open else "",
            engine=completed.engine,
            extends=placed.extends,
            observed=pack_tokens(placed.observed),
            length=known.length,
            tokens=pack_tokens(known.tokens),
            log_probs=pack_log_probs(known.log_probs),
            spans=spans,
            stop=completed.stop,
            text=completed.text,
            agent=await self._setup.keep(self._agent(live.folded, index, turn, placed, packed, reader.message)),
            seconds=time.perf_counter() - began,
        )
        return await self._append_recorded(live, event)

    async def _ended(self, call: Call) -> RolloutCompleted | None:
        """What an engine made of it. Its time begins when an engine is ready. Raises TimeoutError, EngineError."""
        began, left_s = time.time_ns(), self._rules.limits.turn_s
        while True:
            try:
                async with asyncio.timeout(left_s):
                    return await asyncio.shield(call.ended)
            except TimeoutError:
                with contextlib.suppress(StorageError):
                    ready_at = (await self._board.read()).ready_at
                    left_s = READY_LOOK_S
                    if ready_at is not None:
                        left_s = self._rules.limits.turn_s - (time.time_ns() - max(began, ready_at)) / 1e9
                if left_s <= 0:
                    raise

    def _agent(
        self, session: Session, index: int, turn: Turn, placed: Placement, packed: PackedBody, message: dict[str, Any]
    ) -> AgentTurn:
        chain = placed.chain
        return AgentTurn(
            key=session.open[index].key if index in session.open else "",
            dialect=turn.asked.dialect,
            call=sample_id(turn_group_id(session.sample, index), 0),
            messages=placed.messages,
            answered=chain.answered(message),
            frame=chain.frame,
            root=placed.root,
            nearest=placed.nearest,
            drift=placed.drift,
            rule=placed.rule,
            request=packed[0],
            shares=packed[1],
            client=turn.asked.client,
        )

    async def _append_recorded(self, live: LiveSession, event: TurnRecorded) -> LoadedTurn:
        """Until it is in the log, by this gateway or by another one, which has the same tokens."""
        subject = everything_about(self._place.events.run, event.sample)
        while event.index not in live.folded.turns:
            check_open(live)
            with contextlib.suppress(Conflict):
                await self._place.append([event], Fence(subject, live.folded.position))
            await self._read(live)
        return live.turn(event.index)

    def _told(self, session: Session, index: int) -> tuple[str, int]:
        """(id, created) of a turn."""
        return f"{session.name}.{index}", session.begun_at[index] // 10**9

    def _stops(self, session: Session, asked: AgentRequest) -> tuple[str, ...]:
        run = session.request.sampling.stop if session.request else ()
        return (*run, *(stop for stop in asked.sampling.get("stop", ()) if stop not in run))

    def reader(self, turn: Turn) -> TurnReader:
        """A new reader of the turn's tokens."""
        return self._setup.parsers.reader(turn.asked, turn.id, turn.prompt, turn.stops)

    def said_of(self, turn: Turn, known: LoadedTurn) -> Answer:
        """The whole answer, read at once."""
        reader = self.reader(turn)
        reader.feed(known.generated.tolist(), known.log_probs.tolist())
        reader.end(known.stop)
        return self.said(turn, known, reader)

    def said(self, turn: Turn, known: LoadedTurn, reader: TurnReader) -> Answer:
        """The whole answer. reader: that has read all of it."""
        return Answer(
            id=turn.id,
            created=turn.created,
            message=reader.message,
            stop=known.stop,
            text=reader.text,
            prompt_tokens=len(turn.prompt),
            tokens=tuple(known.generated.tolist()),
            log_probs=tuple(known.log_probs.tolist()),
            versions=tuple(dict.fromkeys(span.version for span in known.event.spans)),
            matched=reader.matched,
            reasoning_tokens=reader.reasoning_tokens,
            pieces=reader.pieces,
        )


def _bad_field(error: Exception) -> BadField:
    """The messages of checks begin with the field's name."""
    if isinstance(error.__cause__, InvalidValue):
        error = error.__cause__
    field, found, message = str(error).partition(": ")
    return BadField(field, message) if found and isinstance(error, InvalidValue) else BadField("", str(error))
