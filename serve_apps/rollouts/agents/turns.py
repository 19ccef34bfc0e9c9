"""`Turns`: makes the turns of sessions over the log. An engine generates a turn, and the log has it before its agent
gets the end of the answer.

    request -> turn that it extends -> turn.begun + rollout.requested -> (an engine) -> its tokens, as they come
            -> turn.recorded -> the end of the answer

A retried request joins its turn while the turn is in progress, also if another gateway began the turn. After the turn
has ended, the retry is answered from the log.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import replace
from functools import partial

import numpy as np

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.errors import Conflict, EngineError, InvalidValue, PlugPointError, RequestRefused, StorageError
from schemas.event import Purpose
from schemas.ids import sample_id, sample_seed, turn_group_id
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, TurnEnd
from schemas.subjects import everything_about
from schemas.turns import AgentTurn, TurnBegun, TurnRecorded, TurnRole
from serve_apps.engines.checks import GRAMMARS, check_sampling, read_sampling
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField
from serve_apps.rollouts.agents.bridge import Placement
from serve_apps.rollouts.agents.live_board import LiveBoard
from serve_apps.rollouts.agents.live_session import LiveSession, LoadedTurn, Turn, TurnKey, TurnRefused, check_open
from serve_apps.rollouts.agents.off_loop import SMALL, off_loop
from serve_apps.rollouts.agents.reading import AllRequests
from serve_apps.rollouts.agents.run_log import RunLog
from serve_apps.rollouts.agents.setup import AgentSetup
from serve_apps.rollouts.calls import Call
from slime_events.core.checkpoint.vocabulary import token_ids
from slime_events.core.sessions.agent_requests import PackedBody, packed_body
from slime_events.core.sessions.session import Session, read_session
from slime_events.core.telemetry.current_span import call_in_span
from slime_events.core.telemetry.span_place import turn_place
from storage.cancellation import end_all
from storage.log import Fence

FROM_THE_RUN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""Sampling parameters that the run sets and a request cannot: the trainer computes log-probs under them."""

READY_LOOK_S = 2.0
"""Seconds between two checks whether an engine is ready, for a turn whose time limit has passed."""


class Turns:
    """Makes the turns of one gateway.

    run_log: entered by the caller. board: shows whether an engine is ready. requests: keep the bodies of turns.
    """

    def __init__(self, run_log: RunLog, setup: AgentSetup, board: LiveBoard, requests: AllRequests) -> None:
        self._run_log, self._setup, self._rules, self._board = run_log, setup, setup.rules, board
        self._requests = requests
        self._in_flight = 0
        self._tasks: set[asyncio.Task[LoadedTurn]] = set()

    async def close(self) -> None:
        """Cancel turns that are under way. If their requests are retried, another gateway continues them."""
        await end_all(*self._tasks)
        self._setup.engine.close()

    async def ask(self, live: LiveSession, request: AgentRequest, body: bytes, key: TurnKey) -> Turn:
        """Return the turn of a request. Raises TurnRefused, BadField, StorageError."""
        self._check(request)
        request = await self._validated(await self._tokenized(request, len(body)))
        async with live.lock:
            while True:
                if not live.takes_turns:
                    await self._read(live)
                    check_open(live)
                session = live.folded
                before = session.turns_with_key(key.digest) if key.is_retry else []
                if before and (turn := await self._retried(live, request, body, before[-1])) is not None:
                    return turn
                try:
                    return await self._begin(live, request, body, key)
                except Conflict:  # another gateway appended first: a turn, or the end of the session
                    await self._read(live)
                    check_open(live)

    async def _validated(self, request: AgentRequest) -> AgentRequest:
        """Check that engines accept a request, and add the grammar of its tool calls to its sampling parameters.

        Raises BadField, TurnRefused.
        """
        grammar = self._setup.parsers.constraint(request)
        request = replace(request, sampling={**request.sampling, **grammar}) if grammar else request
        checked = {name: request.sampling[name] for name in (*GRAMMARS, "stop_token_ids") if name in request.sampling}
        try:
            if request.tokens is not None:
                token_ids(request.tokens, self._setup.engine.vocabulary, "input_ids")
            if checked:
                sampling, _ = read_sampling(Sampling(max_new_tokens=1), checked)
                await self._setup.engine.check_sampling(sampling)
        except (InvalidValue, PlugPointError) as error:
            raise _bad_field(error) from error
        except EngineError as error:
            raise TurnRefused(429, str(error), again_s=2.0) from error
        return request

    async def count(self, live: LiveSession, request: AgentRequest, size: int) -> int:
        """Return the number of prompt tokens of a request. size: bytes of the request. Raises BadField."""
        self._check(request)
        async with live.lock:
            placed = await self._place_in(live, request, size)
        return len(placed.observed) + (0 if placed.extends is None else live.end(placed.extends).length)

    def _check(self, request: AgentRequest) -> None:
        """Raise BadField if the parsers cannot read the answer, or if the context is too short for the messages."""
        self._setup.parsers.check(request)
        if (count := len(request.messages)) > (longest := self._rules.longest):
            raise BadField("messages", f"{count:,} messages do not fit in a context of {longest:,} tokens: send fewer")

    async def _tokenized(self, request: AgentRequest, size: int) -> AgentRequest:
        """Replace a prompt text by its token ids."""
        if request.text is None:
            return request
        ids = await off_loop(size, partial(self._setup.bridge.ids, request.text))
        return replace(request, tokens=tuple(ids.tolist()), text=None)

    async def _place_in(self, live: LiveSession, request: AgentRequest, size: int) -> Placement:
        """Return the request's place among the turns that are recorded now.

        Turns that are recorded meanwhile do not count. The caller holds the session's lock, which protects `chains`.
        """
        forest = live if size <= SMALL else live.fixed()
        return await off_loop(size, partial(self._setup.bridge.place, request, forest, live.chains))

    async def _read(self, live: LiveSession) -> None:
        await read_session(self._run_log.events, live.folded.sample, live.folded)

    async def _begin(self, live: LiveSession, request: AgentRequest, body: bytes, key: TurnKey) -> Turn:
        """Append a new turn together with the request for its generation, and follow it. Raises Conflict."""
        session = live.folded
        placed = await self._place_in(live, request, len(body))
        check_open(live)
        rollout_request = session.request
        assert rollout_request is not None
        before = None if placed.extends is None else live.end(placed.extends).length
        length = len(placed.observed) + (before or 0)
        sampling, seed = self._sampling(rollout_request.sampling, request, length)
        index, run = session.next_index, self._run_log.events.run
        group = turn_group_id(session.sample, index)
        sample = sample_id(group, 0)
        begun = TurnBegun(
            sample=session.sample,
            index=index,
            role=TurnRole.ASSISTANT,
            asked=key.digest,
            engine=self._run_log.worker.id,
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
            min_version=rollout_request.min_version,
            max_version=rollout_request.max_version,
            purpose=Purpose.CALL,
            streams=request.stream,
        )
        self._admit(length + sampling.max_new_tokens)
        fence = Fence(everything_about(run, session.sample), session.position)
        since = await self._append_begun(session, begun, call, fence)
        return await self._follow(live, index, request, body, placed, await self._run_log.call(call, since=since))

    async def _append_begun(self, session: Session, begun: TurnBegun, call: RolloutRequested, fence: Fence) -> int:
        """Append both events. Returns the position before them."""
        recorded, _ = await self._run_log.append([begun, call], fence)
        session.apply(recorded)
        return recorded.position - 1

    def _admit(self, tokens: int) -> None:
        most = self._rules.tokens_in_flight
        if self._in_flight and self._in_flight + tokens > most:
            message = f"turns in progress at this gateway use {self._in_flight:,} of {most:,} tokens"
            raise TurnRefused(429, f"{message} (--agent-tokens-in-flight): retry when some have ended", again_s=2.0)

    def _sampling(self, run: Sampling, request: AgentRequest, prompt: int) -> tuple[Sampling, int | None]:
        """Return the run's sampling parameters with those that the request may set, and the request's seed.

        prompt: tokens of the prompt. Raises BadField.
        """
        own = {name: value for name, value in request.sampling.items() if name not in FROM_THE_RUN}
        most = min(run.max_new_tokens, own.get("max_new_tokens") or run.max_new_tokens)
        if self._rules.context is not None:
            most = min(most, self._rules.context - prompt)
        if most < 1:
            context = self._rules.context
            raise BadField("messages", f"the prompt has {prompt} tokens and leaves no room in the context of {context}")
        if "stop" in own:
            own["stop"] = [*run.stop, *(stop for stop in own["stop"] if stop not in run.stop)]
        try:
            sampling, seed = read_sampling(run, own | {"max_new_tokens": most})
            check_sampling(sampling, self._setup.engine.vocabulary)
        except (InvalidValue, PlugPointError) as error:
            raise _bad_field(error) from error
        return sampling, seed

    async def _retried(self, live: LiveSession, request: AgentRequest, body: bytes, index: int) -> Turn | None:
        """Return the turn of a retried request; None if its generation was never requested."""
        if (turn := live.under_way.get(index)) is not None:
            return replace(turn, request=replace(turn.request, stream=request.stream))
        session = live.folded
        if index in session.turns:
            recorded = live.turn(index)
            prompt = live.prompt(recorded.extends, recorded.observed).whole()
            turn = self._turn(session, index, request, prompt, None)
            turn.recorded = recorded
            return turn
        call = await self._run_log.read_call(sample_id(turn_group_id(session.sample, index), 0))
        if call is None:
            return None
        prompt = self._prompt_of(live, call)
        placed = await self._place_in(live, request, len(body))
        if not np.array_equal(live.prompt(placed.extends, placed.observed).whole(), prompt):
            tokens = replace(request, tokens=tuple(prompt.tolist()), messages=())
            by_tokens = self._setup.bridge.place(tokens, live)
            placed = replace(by_tokens, chain=placed.chain, messages=placed.chain.links)
        return await self._follow(live, index, request, body, placed, call)

    async def _follow(
        self, live: LiveSession, index: int, request: AgentRequest, body: bytes, placed: Placement, call: Call
    ) -> Turn:
        prompt = self._prompt_of(live, call)
        turn = self._turn(live.folded, index, request, prompt, call)
        requests = self._requests.of(live.name)
        alike = placed.nearest if placed.extends is None else placed.extends
        packed = packed_body(body, requests.bodies, alike)
        requests.keep(index, body)
        place = turn_place(live.folded.sample, index, TurnRole.ASSISTANT)
        record = partial(self._record, live, index, turn, placed, packed)
        turn.task = asyncio.create_task(call_in_span(self._run_log.events.run, place, record), name=turn.id)
        live.under_way[index] = turn
        self._tasks.add(turn.task)
        self._in_flight += (tokens := len(prompt) + call.request.sampling.max_new_tokens)

        def ended(task: asyncio.Task[LoadedTurn]) -> None:
            self._in_flight -= tokens
            self._tasks.discard(task)
            live.under_way.pop(index, None)
            self._run_log.calls.close(call.request.sample)
            if not task.cancelled():
                task.exception()  # marks it as retrieved; `Turn.end` raises it to each waiting client

        turn.task.add_done_callback(ended)
        return turn

    def _prompt_of(self, live: LiveSession, call: Call) -> Tokens:
        after = call.request.after
        return live.prompt(None if after is None else after.turn, self._setup.fetch(call.request.prompt)).whole()

    async def _record(
        self, live: LiveSession, index: int, turn: Turn, placed: Placement, packed: PackedBody
    ) -> LoadedTurn:
        """Wait for the engine and append its answer. A client that disconnects does not stop it."""
        call, began = turn.call, time.perf_counter()
        assert call is not None
        try:
            completed = await self._ended(call)
        except TimeoutError:
            await self._run_log.calls.abort(call, "its turn took too long")
            message = f"the turn took longer than {self._rules.limits.turn_s:g} s (--agent-turn-seconds)"
            raise TurnRefused(504, message) from None
        except RequestRefused as error:  # every retry would be refused too, and clients do not retry after 400
            raise TurnRefused(400, str(error)) from error
        except EngineError as error:
            raise TurnRefused(502, str(error)) from error
        if completed is None:
            raise TurnRefused(409, "the session was sealed while the turn was under way")
        generated = call.trajectory
        turn.read(generated.tokens, generated.log_probs, completed.stop)
        event = TurnRecorded(
            sample=live.folded.sample,
            index=index,
            role=TurnRole.ASSISTANT,
            asked=live.folded.open[index].key if index in live.folded.open else "",
            engine=completed.engine,
            extends=placed.extends,
            observed=pack_tokens(placed.observed),
            length=generated.length,
            tokens=pack_tokens(generated.tokens),
            log_probs=pack_log_probs(generated.log_probs),
            spans=generated.spans,
            stop=completed.stop,
            text=completed.text,
            agent=await self._setup.keep(self._agent(live.folded, index, turn, placed, packed)),
            seconds=time.perf_counter() - began,
        )
        return await self._append_recorded(live, event)

    async def _ended(self, call: Call) -> RolloutCompleted | None:
        """Wait for the end of a generation; None if it was aborted. The time limit starts once an engine is ready.

        Raises TimeoutError, EngineError.
        """
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

    def _agent(self, session: Session, index: int, turn: Turn, placed: Placement, packed: PackedBody) -> AgentTurn:
        chain = placed.chain
        return AgentTurn(
            key=session.open[index].key if index in session.open else "",
            dialect=turn.request.dialect,
            call=sample_id(turn_group_id(session.sample, index), 0),
            messages=placed.messages,
            answered=chain.answered(turn.reader.message),
            frame=chain.frame,
            root=placed.root,
            nearest=placed.nearest,
            drift=placed.drift,
            rule=placed.rule,
            request=packed[0],
            shares=packed[1],
            client=turn.request.client,
        )

    async def _append_recorded(self, live: LiveSession, event: TurnRecorded) -> LoadedTurn:
        """Append the turn. Another gateway may append it first, with the same tokens."""
        subject = everything_about(self._run_log.events.run, event.sample)
        while event.index not in live.folded.turns:
            check_open(live)
            with contextlib.suppress(Conflict):
                await self._run_log.append([event], Fence(subject, live.folded.position))
            await self._read(live)
        return live.turn(event.index)

    def _turn(self, session: Session, index: int, request: AgentRequest, prompt: Tokens, call: Call | None) -> Turn:
        """Return a turn of the session, with a new reader of its answer."""
        id, run = f"{session.name}.{index}", session.request.sampling.stop if session.request else ()
        stops = (*run, *(stop for stop in request.sampling.get("stop", ()) if stop not in run))
        reader = self._setup.parsers.reader(request, id, prompt, stops)
        return Turn(id, session.begun_at[index] // 10**9, request, prompt, reader, call)


def _bad_field(error: Exception) -> BadField:
    """Return a BadField from the message of a check, which begins with the field's name."""
    if isinstance(error.__cause__, InvalidValue):
        error = error.__cause__
    field, colon, message = str(error).partition(": ")
    return BadField(field, message) if colon and isinstance(error, InvalidValue) else BadField("", str(error))
