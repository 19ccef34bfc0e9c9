"""`Session`: the API of a user's generate function. Every turn is in the log when its call returns.

    async def generate(args, sample, sampling_params, *, session):
        sample.tokens = session.tokenize(sample.prompt)
        for _ in range(args.max_turns):
            turn = await session.generate(sample.tokens)
            turn.add_to(sample)
            ...
            result = await session.call(calculator, {"expression": "2+3"}, may_repeat=True)
            text = f"<result>{result}</result>"
            sample.append_response_tokens(tokens=session.tokenize(text), text=text, trainable=False)
        return sample

After a crash the function is run again from its start, and its calls are answered from the log until the log ends. So
it must be deterministic: everything that reads the outside world goes through `call`.
"""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar, cast

import msgspec
import numpy as np

from schemas.doc import doc
from schemas.errors import InvalidValue, PlugPointError, shown_text
from schemas.rollouts import Sampling, StopReason
from schemas.text import message_text, raised_text, valid_text
from schemas.turns import ToolCall
from serve_apps.engines.checks import read_sampling
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.generate.journal import EndedTurn, InFlight
from serve_apps.rollouts.rollout import Suspended
from slime_events.core.checkpoint.vocabulary import token_ids
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import name_of
from slime_events.plugins.plain_values import plain
from slime_events.plugins.sample import Sample, carried
from slime_events.plugins.tokenizer import Tokenizer
from storage.log import MAX_EVENT_BYTES

T = TypeVar("T")
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]  # a text, token ids, or chat messages
Tools = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation."""

    index: int
    prompt_tokens: list[int]
    tokens: list[int]
    log_probs: Annotated[list[float], doc("One per token, nats, of logits / temperature.")]
    text: str
    stop: StopReason
    versions: Annotated[tuple[int, ...], doc("Weight versions that generated the tokens.")]
    meta: Annotated[Mapping[str, Any], doc("Additional values of the engine's answer, if requested.")] = field(
        default_factory=dict
    )

    @property
    def meta_info(self) -> dict[str, Any]:
        """`meta_info` as in SGLang's answer."""
        return {
            "finish_reason": {"type": self.stop.value},
            "prompt_tokens": len(self.prompt_tokens),
            "completion_tokens": len(self.tokens),
            "cached_tokens": 0,
            **self.meta,
            "weight_version": str(max(self.versions, default=0)),
        }

    def add_to(self, sample: Sample) -> None:
        """Append the turn to a sample's response, as trained tokens."""
        sample.append_response_tokens(
            tokens=self.tokens, log_probs=self.log_probs, text=self.text, meta_info=self.meta_info
        )


class Turns(Protocol):
    """Maker of a session's turns: a rollout's journal, or the calls of a rollout function.

    `failure` is the reason why it makes no more turns.
    """

    failure: BaseException | None

    async def generate(
        self, prompt: Tokens, sampling: Sampling, seed: int | None, payload: dict[str, Any]
    ) -> EndedTurn: ...

    async def begin_call(self, call: ToolCall) -> EndedTurn | InFlight: ...

    async def end_call(self, turn: InFlight, result: Any, error: str, seconds: float) -> EndedTurn: ...


class Session:
    """The session of one rollout, created on the worker's event loop. Several tasks of the function may use it
    concurrently.

    `of_function` marks the session of a rollout function, which makes all rollouts of a step and may `abort` them.
    `aborted` is set from `abort` until `reset`.
    """

    of_function = aborted = False

    def __init__(
        self, journal: Turns, tokenizer: Tokenizer, sampling: Sampling, args: ArgsView, tools: Tools | None = None
    ) -> None:
        self._journal, self._loop, self._tools = journal, asyncio.get_running_loop(), tools
        self.tokenizer, self.sampling, self.args = tokenizer, sampling, args
        self.router_port = 0
        """Port of this rollout's `Listener`; 0 until it is open."""

    @property
    def failure(self) -> BaseException | None:
        """Reason why the rollout makes no more turns."""
        return self._journal.failure

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Return token ids of a text, or of chat messages after the model's template. No special tokens are added."""
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(valid_text(prompt), add_special_tokens=False))
        if all(isinstance(part, Mapping) for part in prompt):
            tools = {"tools": self._tools} if self._tools else {}
            extra = tools | getattr(self.args, "apply_chat_template_kwargs", {})
            messages = cast(Sequence[Mapping[str, Any]], prompt)
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **extra)
            return self.tokenize(text)
        try:
            return list(token_ids(prompt, None, "prompt").tolist())
        except InvalidValue as error:
            raise PlugPointError(f"session.tokenize: {error}") from error

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Generate one turn.

        `sampling_params` has SGLang's names, and overrides the run's. `payload` has other fields of SGLang's /generate
        (`logprob_start_len`, `image_data`, ...); the answers to them are in the turn's `meta_info`.

        Raises PlugPointError for invalid parameters, EngineError for parameters that SGLang refuses, GenerateDiffers.
        """
        tokens = self.tokenize(prompt)
        if not tokens:
            raise PlugPointError("session.generate got an empty prompt")
        sampling, seed = read_sampling(self.sampling, sampling_params or {})
        more = carried(dict(payload or {}), "payload")
        ended = await self._on_worker_loop(self._journal.generate(np.array(tokens, np.int32), sampling, seed, more))
        event = ended.event
        return Turn(
            index=event.index,
            prompt_tokens=tokens,
            tokens=ended.tokens.tolist(),
            log_probs=ended.log_probs.tolist(),
            text=event.text,
            stop=event.stop or StopReason.STOP,
            versions=tuple(span.version for span in event.spans),
            meta=event.meta,
        )

    async def call(
        self,
        tool: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        may_repeat: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the result of `tool(**arguments)` as a JSON value. A coroutine is awaited, other tools run in a
        thread.

        The tool is called once, even if the function is run again. If an engine is lost during the call, a tool with
        `may_repeat` is called a second time; without it the rollout fails. Raises ToolFailed if the tool raises, or
        after `timeout_s` seconds.
        """
        call = ToolCall(name_of(tool), _plain_arguments(tool, arguments), may_repeat)
        answer = await self._on_worker_loop(self._journal.begin_call(call))
        if isinstance(answer, InFlight):
            begun = time.perf_counter()
            result, error = await _call_tool(tool, call.arguments, timeout_s)
            seconds = time.perf_counter() - begun
            answer = await self._on_worker_loop(self._journal.end_call(answer, result, error, seconds))
        return answer.result()

    async def abort(self) -> None:
        """Raise PlugPointError: only a rollout function may end the generations in progress."""
        raise PlugPointError(
            "abort: a run ends or suspends its own rollouts; --partial-rollout keeps their tokens so far, "
            "--over-sampling-batch-size requests more groups than a step needs"
        )

    def reset(self) -> None:
        """Allow generations again after `abort`."""
        self.aborted = False

    async def _on_worker_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the worker's loop. The function has its own loop, so that it cannot block the engine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


CURRENT: ContextVar[Session] = ContextVar("session")


_OF_PROCESS: list[Session] = []


@contextlib.contextmanager
def session_of_process(session: Session) -> Iterator[None]:
    """Make the session the default of threads that have none: a rollout function may start threads."""
    _OF_PROCESS.append(session)
    try:
        yield
    finally:
        _OF_PROCESS.remove(session)


def session_here() -> Session | None:
    """Return the session of the calling rollout; None outside of a run, as in a test of a plug-in."""
    return CURRENT.get(_OF_PROCESS[0] if _OF_PROCESS else None)


def current_session() -> Session:
    """Return the session of the calling rollout. Raises PlugPointError without one."""
    session = session_here()
    if session is None:
        raise PlugPointError("there is no session here: only a running generate function has one")
    return session


def _plain_arguments(tool: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the log returns them. Raises PlugPointError for values that are not JSON."""
    try:
        try:
            encoded = msgspec.msgpack.encode(dict(arguments))
        except UnicodeEncodeError:  # a model's JSON may have an unpaired surrogate: "\\ud83d"
            encoded = msgspec.msgpack.encode(carried(dict(arguments), "arguments"))
        return msgspec.msgpack.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise PlugPointError(f"arguments of {name_of(tool)} must be JSON values: {message_text(error)}") from error


def _in_thread(tool: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return tool(**arguments)
    except StopIteration as error:  # a future rejects it, so that the caller would never return
        raise RuntimeError(f"StopIteration: {message_text(error)}") from error


async def _call_tool(tool: Callable[..., Any], arguments: dict[str, Any], timeout_s: float | None) -> tuple[Any, str]:
    """Return (result, error) of a call. The error is empty if the call succeeded."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            is_coroutine = inspect.iscoroutinefunction(tool)
            result = await (tool(**arguments) if is_coroutine else asyncio.to_thread(_in_thread, tool, arguments))
            if inspect.isawaitable(result):
                result = await result
        return plain(result, room=MAX_EVENT_BYTES), ""  # a larger result fails its sample when it is appended
    except (asyncio.CancelledError, Suspended):
        raise
    except BaseException as error:  # a user's tool may raise anything
        raised = shown_text(f"raised {raised_text(error)}")
        reason = f"took longer than {timeout_s} s" if limit.expired() else raised
        return None, f"{name_of(tool)} {reason}"
