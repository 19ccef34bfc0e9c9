"""`CustomGenerate`: rollouts made by a user's generate function, from their request to their end in the log.

`completions` turns the function's result into events: one `rollout.completed` for each of its samples.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import pack, pack_log_probs, pack_tokens, unpack
from schemas.doc import doc
from schemas.errors import Conflict, EngineError, InvalidValue, PlugPointError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.ids import sibling_id
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested, RoutedExperts, StopReason, Timings, WeightSpan
from schemas.subjects import everything_about
from schemas.text import raised_text, repr_text
from serve_apps.engines.engine import LogProbs, Tokens, sampling_params
from serve_apps.rollouts.generate.experts import experts_of
from serve_apps.rollouts.generate.function import GenerateFunction, GenerateSetup, UserLoop
from serve_apps.rollouts.generate.hooks import SampleHook
from serve_apps.rollouts.generate.journal import EndedTurn, Journal, TurnLog
from serve_apps.rollouts.generate.listener import Listener
from serve_apps.rollouts.generate.returned import read_sample
from serve_apps.rollouts.generate.session import Session
from serve_apps.rollouts.rollout import Prompts, Rollout, RolloutContext, Suspended
from slime_events.core.checkpoint.vocabulary import token_ids, vocabulary_of
from slime_events.core.tokens.trajectory import Fetch, content_digest, mask_older_versions
from slime_events.plugins.args_view import ArgsView, CallArgs
from slime_events.plugins.loader import place_of
from slime_events.plugins.rewards.outcome import outcome_event, signed
from slime_events.plugins.rewards.teacher import graded
from slime_events.plugins.sample import Sample, Status, carried
from slime_events.plugins.sample_view import completed_sample, initial_metadata, requested_sample
from slime_events.plugins.tokenizer import Tokenizer
from storage.cancellation import check_cancelled
from storage.log import EventLog

Versions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.int8]
NO_VERSION = -1
ATTRIBUTES_BYTES = 1024 * 1024
"""Maximum encoded size of a sample's attributes: an event holds four times as much."""
_IN_EVENT = frozenset({"tokens", "response", "response_length", "rollout_log_probs", "status"})
"""Attributes that the event has as fields."""
_COMPUTED = frozenset({"index", "group_index", "loss_mask", "weight_versions"})
"""Attributes that are computed if the function leaves them open."""
_STOPS = {Status.COMPLETED: StopReason.STOP, Status.TRUNCATED: StopReason.LENGTH}


class CompletionContext(msgspec.Struct, frozen=True):
    """Values that all samples of one rollout share."""

    request: RolloutRequested
    submitted: Annotated[PromptSubmitted, doc("The group's prompt.")]
    prompt: Annotated[Any, doc("int32 [tokens], as requested.")]
    turns: Annotated[
        Sequence[tuple[Tokens | int, EndedTurn]],
        doc("Generations, each with its prompt or the position of its first token."),
    ]
    engine: str
    tokenizer: Annotated[Any, doc("The run's `Tokenizer`.")]
    timings: Timings
    functions: Annotated[
        dict[str, str], doc("Functions that made the rollout, to the sha256 (hex) of their source.")
    ] = {}
    vocabulary: Annotated[int | None, doc("Number of token ids of the model; None if unknown.")] = None
    experts: Annotated[dict[int, RoutedExperts], doc("By turn, if the engine reported them.")] = {}


def completions(returned: object, shared: CompletionContext) -> list[RolloutCompleted]:
    """Return one event per sample. The requested sample comes last, so that a reader of it has read the others.

    Raises PlugPointError for samples that cannot be trained on, EngineError for an aborted sample.
    """
    samples = returned if isinstance(returned, list) else [returned]
    sample = shared.request.sample
    if not samples or not all(isinstance(item, Sample) for item in samples):
        raise PlugPointError(
            f"the generate function of {sample} returned {repr_text(returned)}, not a Sample or a list"
        )
    events = [completion(item, sibling_id(sample, number), shared) for number, item in enumerate(samples)]
    return [*events[1:], events[0]]


def completion(sample: Sample, name: str, shared: CompletionContext) -> RolloutCompleted:
    """Return the event of one sample. Raises the errors of `completions`, whatever the function left on the sample."""
    try:
        return _completion(read_sample(sample), name, shared)
    except SlimeEventsError:
        raise
    except BaseException as error:  # a user's object may raise anything when it is read
        raise PlugPointError(f"sample {name} cannot be recorded: {raised_text(error)}{place_of(error)}") from error


def _completion(sample: Sample, name: str, shared: CompletionContext) -> RolloutCompleted:
    stop = _stop(sample, name, shared)
    tokens = ids_of(sample, name, shared.vocabulary)
    cut = len(tokens) - sample.response_length
    if sample.response_length < 1 or cut < 1:
        raise PlugPointError(
            f"sample {name} has {len(tokens)} tokens, {sample.response_length} of them response: it needs at least one "
            "for the prompt and one for the response (sample.tokens holds both, sample.response_length counts the "
            "response)"
        )
    versions, log_probs = _generated(tokens, shared.turns)
    mask = _mask(sample, name, versions[cut:])
    oldest = min((span.version for _, turn in shared.turns for span in turn.event.spans), default=None)
    unknown = (mask == 1) & (versions[cut:] == NO_VERSION)
    log_probs = _log_probs(sample, name, log_probs[cut:], unknown, mask, versions[cut:])
    without = np.isnan(log_probs)
    log_probs[without] = 0.0
    spans = _spans(
        np.where(unknown & ~without, shared.request.min_version if oldest is None else oldest, versions[cut:])
    )
    newer = mask_older_versions(spans, len(mask)) if shared.request.mask_older else None
    mask = mask if newer is None else mask & newer
    own = None if np.array_equal(tokens[:cut], shared.prompt) else tokens[:cut]
    completed = RolloutCompleted(
        sample=name,
        group=shared.request.group,
        attempt=shared.request.attempt,
        start=0,
        length=sample.response_length,
        prompt_length=cut,
        stop=stop,
        text=sample.response,
        spans=spans,
        digest=content_digest(tokens[cut:], log_probs),
        engine=shared.engine,
        tokens=pack_tokens(tokens[cut:]),
        log_probs=pack_log_probs(log_probs),
        loss_mask=None if mask.all() else pack(mask, "int8"),
        timings=shared.timings,
        rollout="" if name == shared.request.sample else shared.request.sample,
        prompt=None if own is None else pack_tokens(own),
        prompt_text="" if own is None else _prompt_text(sample, own.tolist(), shared.tokenizer),
        metadata=_added(sample, shared.submitted),
        place=shared.request.place,
        functions=shared.functions,
        experts=experts_of(tokens, shared.turns, shared.experts),
    )
    return msgspec.structs.replace(completed, attributes=_attributes(sample, completed, shared))


def ids_of(sample: Sample, name: str, vocabulary: int | None) -> Tokens:
    """Return the tokens of a function's sample. Raises PlugPointError for anything that is not a token of the model."""
    try:
        return token_ids(sample.tokens, vocabulary, f"sample {name}: tokens")
    except InvalidValue as error:
        raise PlugPointError(str(error)) from error


def _added(sample: Sample, submitted: PromptSubmitted) -> dict[str, Any]:
    """Return the metadata that the function added or changed."""
    if not (isinstance(sample.metadata, dict) and isinstance(submitted.metadata, dict)):
        return {}
    before, after = initial_metadata(submitted), carried(sample.metadata, "sample.metadata")
    return {key: value for key, value in after.items() if key not in before or before[key] != value}


def _attributes(sample: Sample, completed: RolloutCompleted, shared: CompletionContext) -> dict[str, Any]:
    """Return the attributes that the event does not imply. Raises PlugPointError for non-JSON values."""
    mask = completed.loss_mask
    loss_mask = {"loss_mask": [1] * completed.length if mask is None else unpack(mask).tolist()}
    shown = completed_sample(completed, shared.submitted).to_dict() | loss_mask
    left = {name: value for name, value in sample.to_dict().items() if name not in _IN_EVENT}
    own_id = (None, shared.request.sample)
    attributes = {
        name: value
        for name, value in (
            (name, carried(value, f"sample.{name}", room=2 * ATTRIBUTES_BYTES)) for name, value in left.items()
        )
        if (name not in shown or value != shown[name])
        and not (name in _COMPUTED and value in (None, []))
        and not (name == "session_id" and value in own_id)
    }
    sizes = {name: len(msgspec.msgpack.encode(value)) for name, value in attributes.items()}
    if sum(sizes.values()) > ATTRIBUTES_BYTES:
        most = max(sizes, key=sizes.__getitem__)
        raise PlugPointError(
            f"sample {completed.sample} has {sum(sizes.values())} bytes of attributes, most of them in sample.{most}; "
            f"the log carries up to {ATTRIBUTES_BYTES} to its grader: keep large data in a file, and its path here"
        )
    return attributes


def _prompt_text(sample: Sample, tokens: list[int], tokenizer: Tokenizer) -> str:
    """Return the sample's own prompt text if it encodes to the tokens, else the decoded tokens."""
    text = sample.prompt
    if isinstance(text, str) and list(tokenizer.encode(text, add_special_tokens=False)) == tokens:
        return text
    return str(tokenizer.decode(tokens, skip_special_tokens=False, spaces_between_special_tokens=False))


def _stop(sample: Sample, name: str, shared: CompletionContext) -> StopReason:
    if sample.status == Status.ABORTED:  # or the text "aborted", as in slime
        raise EngineError(f"the generate function returned sample {name} as aborted")
    if sample.status == Status.FAILED:
        raise PlugPointError(f"the generate function returned sample {name} as failed")
    last = shared.turns[-1][1].event.stop if shared.turns else None
    return _STOPS.get(sample.status) or last or StopReason.STOP


def _generated(tokens: Tokens, turns: Sequence[tuple[Tokens | int, EndedTurn]]) -> tuple[Versions, LogProbs]:
    """Return weight version and log-prob of each token, from the turns whose prompts the tokens continue."""
    versions, log_probs = np.full(len(tokens), NO_VERSION, np.int64), np.zeros(len(tokens), np.float32)
    for prompt, turn in turns:
        begin = prompt if isinstance(prompt, int) else len(prompt)
        if begin > len(tokens) or not (isinstance(prompt, int) or np.array_equal(tokens[:begin], prompt)):
            continue
        room = min(len(turn.tokens), len(tokens) - begin)
        differ = np.nonzero(tokens[begin : begin + room] != turn.tokens[:room])[0]
        kept = int(differ[0]) if len(differ) else room
        log_probs[begin : begin + kept] = turn.log_probs[:kept]
        for span in turn.event.spans:
            versions[begin + span.start : begin + min(span.end, kept)] = span.version
    return versions, log_probs


def _mask(sample: Sample, name: str, versions: Versions) -> Mask:
    """Return the function's loss mask, or else 1 on the tokens that a turn of this rollout generated."""
    if sample.remove_sample:
        return np.zeros(len(versions), np.int8)
    if sample.loss_mask is None:
        return np.array(versions != NO_VERSION, np.int8)
    if len(sample.loss_mask) != len(versions) or not set(sample.loss_mask) <= {0, 1}:
        raise PlugPointError(
            f"sample {name} has a loss mask of {len(sample.loss_mask)} for a response of {len(versions)} tokens: give "
            "0 or 1 for each"
        )
    return np.array(sample.loss_mask, np.int8)


def _log_probs(
    sample: Sample, name: str, generated: LogProbs, unknown: npt.NDArray[np.bool_], mask: Mask, versions: Versions
) -> LogProbs:
    """Return the function's log-probs, or else those of the turns.

    Tokens that are neither trained on nor generated have 0. Trained tokens without a log-prob (a template's newline)
    have NaN: no span covers them, and the trainer uses its own log-probs there.
    """
    own = sample.rollout_log_probs
    if own is None:
        return np.where(unknown, np.float32(np.nan), generated)
    if len(own) != len(mask):
        raise PlugPointError(f"sample {name} has {len(own)} log-probs for a response of {len(mask)} tokens")
    log_probs, missing = np.array(own, np.float32), np.array([value is None for value in own])
    log_probs[(mask == 0) & (versions == NO_VERSION)] = 0.0
    if not np.isfinite(log_probs[~missing]).all():
        raise PlugPointError(f"sample {name} has log-probs that are not finite numbers")
    return np.where(missing & (versions != NO_VERSION), generated, log_probs)


def _spans(versions: Versions) -> tuple[WeightSpan, ...]:
    """Return one span per run of equal versions. Tokens without a version have no span."""
    edges = [0, *(np.nonzero(np.diff(versions))[0] + 1).tolist(), len(versions)]
    runs = (WeightSpan(start, end, int(versions[start])) for start, end in pairwise(edges))
    return tuple(run for run in runs if run.version != NO_VERSION)


class CustomGenerate:
    """Runs the function for up to `room` rollouts at a time.

    A prompt may name its own generate function (slime's `sample.generate_function_path`).
    """

    def __init__(self, setup: GenerateSetup, tokenizer: Tokenizer, log: EventLog, fetch: Fetch, room: int) -> None:
        """Raises PlugPointError and its subclasses for a function that cannot be used."""
        self._user_dir, self._path = setup.user_dir, setup.path
        self._hooks = [SampleHook(hook, setup.user_dir) for hook in setup.hooks]
        self._functions: dict[str, GenerateFunction] = {}
        if setup.path:
            self._function(setup.path)
        self._timeout_s, self._tokenizer, self._log, self._fetch = setup.timeout_s, tokenizer, log, fetch
        self._args, self._vocabulary = ArgsView(setup.args), vocabulary_of(setup.tokenizer)
        self._prompts, self._loop, self._http = Prompts(log), UserLoop(room), UserLoop(1, "listener")

    def close(self) -> None:
        """End the thread of the functions, and that of their listeners."""
        self._loop.stop()
        self._http.stop()

    def _function(self, path: str) -> GenerateFunction:
        if path not in self._functions:
            self._functions[path] = GenerateFunction(path, self._user_dir, self._hooks)
        return self._functions[path]

    async def makes(self, request: RolloutRequested) -> bool:
        """Return whether a generate function makes this rollout, rather than the engine alone."""
        return bool(self._path or (await self._prompts.of(request.group)).generate_function_path)

    async def make(self, rollout: Rollout, context: RolloutContext) -> None:
        """Run the function and append its result: the samples, or that the rollout is suspended.

        Continues after the last turn in the log. Raises the errors that the worker appends as rollout.failed:
        PlugPointError for an error of the function, EngineError for one of its engine. Also raises Conflict and
        StorageError.
        """
        request = rollout.request
        turn_log = await self._read(rollout)
        prompt = await self._prompts.of(request.group)
        function = self._function(prompt.generate_function_path or self._path)
        journal = Journal(rollout, turn_log, context)
        try:
            returned = await self._run(function, request, prompt, journal)
            turn_log.check_all_claimed()
        except Suspended:
            await context.append([msgspec.structs.replace(rollout.suspended(), length=turn_log.generated)])
            return
        finally:
            journal.close()
        tokens, timings = self._fetch(request.prompt), rollout.timings()
        engine, code = rollout.engine, function.code
        of_run = self._tokenizer, timings, code, self._vocabulary, journal.experts
        shared = CompletionContext(request, prompt, tokens, journal.turns, engine, *of_run)
        events = completions(returned, shared)
        await context.append([*events, *self._rewards(function, returned, events, request)])

    async def _read(self, rollout: Rollout) -> TurnLog:
        """Return the rollout's turns in the log. Moves the fence to the last of them."""
        sample = rollout.request.sample
        turn_log = TurnLog(sample, self._fetch)
        subject = everything_about(self._log.run, sample)
        async for recorded in self._log.read(1, subject):
            event = recorded.envelope.event
            if isinstance(event, RolloutCompleted):
                raise Conflict(
                    f"{sample} was completed meanwhile", subject=subject, expected=rollout.trajectory.position
                )
            turn_log.apply(event)
            rollout.trajectory.position = recorded.position
        return turn_log

    async def _run(
        self, function: GenerateFunction, request: RolloutRequested, prompt: PromptSubmitted, journal: Journal
    ) -> Any:
        """Return the function's result. An error in its turns takes precedence over the function's own."""
        args = CallArgs(self._args, lambda: listener.open())
        session = Session(journal, self._tokenizer, request.sampling, args, prompt.tools)
        here = asyncio.get_running_loop()
        listener = Listener(session, self._http, lambda: here.call_soon_threadsafe(lambda: running.cancel()))
        call = function(
            args,
            requested_sample(request, prompt),
            sampling_params(request.sampling),
            rollout_id=request.min_version,
            evaluation=request.purpose is Purpose.EVAL,
            session=session,
        )
        running = asyncio.wrap_future(self._loop.begin(call))
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                returned = await running
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # the function may raise anything
            check_cancelled()  # past this line the function itself was cancelled
            if journal.failure is not None:
                raise journal.failure from error
            if limit.expired():
                raise PlugPointError(
                    f"the generate function {function.name} took longer than {self._timeout_s:g} s for "
                    f"{request.sample} (--generate-timeout)"
                ) from error
            raise (
                error if isinstance(error, SlimeEventsError) else function.error_of(error, listener.refused)
            ) from error
        finally:
            await listener.close()
        if journal.failure is not None:
            raise journal.failure
        return returned

    def _rewards(
        self, function: GenerateFunction, returned: Any, events: list[RolloutCompleted], request: RolloutRequested
    ) -> list[Event]:
        """Return the rewards of samples that the function graded itself. As in slime, a group grader overrides them."""
        if self._args.group_rm:
            return []
        samples: list[Sample] = returned if isinstance(returned, list) else [returned]
        key = (self._args.eval_reward_key if request.purpose is Purpose.EVAL else None) or self._args.reward_key
        name, digest = function.name, function.digest
        return [
            outcome_event(event.sample, event.group, signed(graded(sample.reward, sample, key), name, digest))
            for sample, event in zip([*samples[1:], samples[0]], events, strict=True)
            if sample.reward is not None
        ]
