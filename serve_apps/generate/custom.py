"""`CustomGenerate`: rollouts made by a user's generate function, from their request to their end in the log.

`completions` turns the function's result into events: one `rollout.completed` for each of its samples.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import pack, pack_log_probs, pack_tokens, unpack
from schemas.errors import Conflict, EngineError, InvalidValue, PlugPointError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.ids import sibling_id
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested, StopReason, Timings, WeightSpan
from schemas.subjects import everything_about
from schemas.text import raised_text, repr_text
from serve_apps.engine.engine import LogProbs, Tokens, sampling_params
from serve_apps.generate.function import GenerateFunction, GenerateSetup, UserLoop
from serve_apps.generate.hooks import SampleHook
from serve_apps.generate.journal import Ended, Journal, TurnLog
from serve_apps.generate.listener import Listener
from serve_apps.generate.returned import read_sample
from serve_apps.generate.session import Session
from serve_apps.rollout import Prompts, Rollout, RolloutContext, Suspended
from slime_events.core.trajectory import Fetch, content_digest, mask_older_versions
from slime_events.core.vocabulary import token_ids, vocabulary_of
from slime_events.plugins.args_view import ArgsView, CallArgs
from slime_events.plugins.loader import place_of
from slime_events.plugins.rewards.outcome import outcome_event, signed
from slime_events.plugins.rewards.teacher import graded
from slime_events.plugins.sample import Sample, Status, carried
from slime_events.plugins.sample_view import completed_sample, given_metadata, sample_to_make
from storage.cancellation import check_cancelled
from storage.log import EventLog

Versions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.int8]
NO_VERSION = -1
ATTRIBUTES_BYTES = 1024 * 1024
"""Of what a function leaves on a sample, encoded: an event has four times as much room."""
_IN_EVENT = frozenset({"tokens", "response", "response_length", "rollout_log_probs", "status"})
"""Attributes that are in the event as they are."""
_FOUND = frozenset({"index", "group_index", "loss_mask", "weight_versions"})
"""Attributes that are found where a function leaves them open."""
_STOPS = {Status.COMPLETED: StopReason.STOP, Status.TRUNCATED: StopReason.LENGTH}


class Made(msgspec.Struct, frozen=True):
    """What all samples of one rollout share. asked: its group's prompt. prompt: int32, as requested. turns: the
    generations with their prompts, or with the place where their tokens are known to begin. tokenizer: the run's.
    functions: that made it, and their digests. vocabulary: ids of the model; None is unknown.
    """

    request: RolloutRequested
    asked: PromptSubmitted
    prompt: Any
    turns: Sequence[tuple[Tokens | int, Ended]]
    engine: str
    tokenizer: Any
    timings: Timings
    functions: dict[str, str] = {}
    vocabulary: int | None = None


def completions(returned: Any, made: Made) -> list[RolloutCompleted]:
    """One event per sample. The requested sample comes last, so that its reader has read the others.

    Raises PlugPointError for samples that cannot be trained on, EngineError for an aborted sample.
    """
    samples = returned if isinstance(returned, list) else [returned]
    sample = made.request.sample
    if not samples or not all(isinstance(one, Sample) for one in samples):
        raise PlugPointError(
            f"the generate function of {sample} returned {repr_text(returned)}, not a Sample or a list"
        )
    events = [completion(one, sibling_id(sample, number), made) for number, one in enumerate(samples)]
    return [*events[1:], events[0]]


def completion(sample: Sample, name: str, made: Made) -> RolloutCompleted:
    """The event of one sample. Raises as `completions`, whatever a function left on the sample."""
    try:
        return _completion(read_sample(sample), name, made)
    except SlimeEventsError:
        raise
    except BaseException as error:  # of an object of the function's, when it is looked at
        raise PlugPointError(f"sample {name} cannot be recorded: {raised_text(error)}{place_of(error)}") from error


def _completion(sample: Sample, name: str, made: Made) -> RolloutCompleted:
    stop = _stop(sample, name, made)
    tokens = ids_of(sample, name, made.vocabulary)
    cut = len(tokens) - sample.response_length
    if sample.response_length < 1 or cut < 1:
        raise PlugPointError(
            f"sample {name} has {len(tokens)} tokens, {sample.response_length} of them response: it needs a prompt and "
            "a response of one at least (sample.tokens holds both, sample.response_length counts the second)"
        )
    versions, log_probs = _generated(tokens, made.turns)
    mask = _mask(sample, name, versions[cut:])
    oldest = min((span.version for _, turn in made.turns for span in turn.event.spans), default=None)
    unknown = (mask == 1) & (versions[cut:] == NO_VERSION)
    log_probs = _log_probs(sample, name, log_probs[cut:], unknown, mask, versions[cut:])
    without = np.isnan(log_probs)
    log_probs[without] = 0.0
    spans = _spans(np.where(unknown & ~without, made.request.min_version if oldest is None else oldest, versions[cut:]))
    newer = mask_older_versions(spans, len(mask)) if made.request.mask_older else None
    mask = mask if newer is None else mask & newer
    own = None if np.array_equal(tokens[:cut], made.prompt) else tokens[:cut]
    completed = RolloutCompleted(
        sample=name,
        group=made.request.group,
        attempt=made.request.attempt,
        start=0,
        length=sample.response_length,
        prompt_length=cut,
        stop=stop,
        text=sample.response,
        spans=spans,
        digest=content_digest(tokens[cut:], log_probs),
        engine=made.engine,
        tokens=pack_tokens(tokens[cut:]),
        log_probs=pack_log_probs(log_probs),
        loss_mask=None if mask.all() else pack(mask, "int8"),
        timings=made.timings,
        rollout="" if name == made.request.sample else made.request.sample,
        prompt=None if own is None else pack_tokens(own),
        prompt_text="" if own is None else _prompt_text(sample, own.tolist(), made.tokenizer),
        metadata=_added(sample, made.asked),
        place=made.request.place,
        functions=made.functions,
    )
    return msgspec.structs.replace(completed, attributes=_attributes(sample, completed, made))


def ids_of(sample: Sample, name: str, vocabulary: int | None) -> Tokens:
    """The tokens of a function's sample. Raises PlugPointError for whatever is no token of the model."""
    try:
        return token_ids(sample.tokens, vocabulary, f"sample {name}: tokens")
    except InvalidValue as error:
        raise PlugPointError(str(error)) from error


def _added(sample: Sample, asked: PromptSubmitted) -> dict[str, Any]:
    """What the function added to the metadata, or changed in it."""
    if not (isinstance(sample.metadata, dict) and isinstance(asked.metadata, dict)):
        return {}
    given, left = given_metadata(asked), carried(sample.metadata, "sample.metadata")
    return {key: value for key, value in left.items() if key not in given or given[key] != value}


def _attributes(sample: Sample, completed: RolloutCompleted, made: Made) -> dict[str, Any]:
    """What a grader would not see on the sample without them. Raises PlugPointError for what is no JSON value."""
    mask = completed.loss_mask
    found = {"loss_mask": [1] * completed.length if mask is None else unpack(mask).tolist()}
    shown = completed_sample(completed, made.asked).to_dict() | found
    left = {name: value for name, value in sample.to_dict().items() if name not in _IN_EVENT}
    own_id = (None, made.request.sample)
    attributes = {
        name: value
        for name, value in (
            (name, carried(value, f"sample.{name}", room=2 * ATTRIBUTES_BYTES)) for name, value in left.items()
        )
        if (name not in shown or value != shown[name])
        and not (name in _FOUND and value in (None, []))
        and not (name == "session_id" and value in own_id)
    }
    sizes = {name: len(msgspec.msgpack.encode(value)) for name, value in attributes.items()}
    if sum(sizes.values()) > ATTRIBUTES_BYTES:
        most = max(sizes, key=sizes.__getitem__)
        raise PlugPointError(
            f"sample {completed.sample} has {sum(sizes.values())} bytes of attributes, most of them in sample.{most}; "
            f"{ATTRIBUTES_BYTES} go through the log to its grader: keep what is large in a file, and its path here"
        )
    return attributes


def _prompt_text(sample: Sample, tokens: list[int], tokenizer: Any) -> str:
    """The prompt's text as the function gives it where its tokens are these, else the text of the tokens."""
    text = sample.prompt
    if isinstance(text, str) and list(tokenizer.encode(text, add_special_tokens=False)) == tokens:
        return text
    return str(tokenizer.decode(tokens, skip_special_tokens=False, spaces_between_special_tokens=False))


def _stop(sample: Sample, name: str, made: Made) -> StopReason:
    if sample.status == Status.ABORTED:  # a text does too, as in slime
        raise EngineError(f"the generate function returned sample {name} as aborted")
    if sample.status == Status.FAILED:
        raise PlugPointError(f"the generate function returned sample {name} as failed")
    last = made.turns[-1][1].event.stop if made.turns else None
    return _STOPS.get(sample.status) or last or StopReason.STOP


def _generated(tokens: Tokens, turns: Sequence[tuple[Tokens | int, Ended]]) -> tuple[Versions, LogProbs]:
    """Weight version and log-prob of each token, from the turns whose prompts the tokens continue."""
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
    """The function's loss mask, or 1 on the tokens that a turn of this rollout generated."""
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
    """The function's log-probs, or the turns'; 0 on tokens that are neither trained on nor generated. NaN on trained
    tokens that have none (a template's newline): no span covers those, and the trainer's own count there.
    """
    given = sample.rollout_log_probs
    if given is None:
        return np.where(unknown, np.float32(np.nan), generated)
    if len(given) != len(mask):
        raise PlugPointError(f"sample {name} has {len(given)} log-probs for a response of {len(mask)} tokens")
    log_probs, missing = np.array(given, np.float32), np.array([value is None for value in given])
    log_probs[(mask == 0) & (versions == NO_VERSION)] = 0.0
    if not np.isfinite(log_probs[~missing]).all():
        raise PlugPointError(f"sample {name} has log-probs that are no finite numbers")
    return np.where(missing & (versions != NO_VERSION), generated, log_probs)


def _spans(versions: Versions) -> tuple[WeightSpan, ...]:
    """One span per run of equal versions; tokens without a version have none."""
    edges = [0, *(np.nonzero(np.diff(versions))[0] + 1).tolist(), len(versions)]
    runs = (WeightSpan(start, end, int(versions[start])) for start, end in pairwise(edges))
    return tuple(run for run in runs if run.version != NO_VERSION)


class CustomGenerate:
    """Runs the function for one rollout after the other, or for `room` of them at a time.

    A prompt that names a generate function of its own (slime's `sample.generate_function_path`) gets that one.
    """

    def __init__(self, setup: GenerateSetup, tokenizer: Any, log: EventLog, fetch: Fetch, room: int) -> None:
        """Raises PlugPointError and its kinds for a function that cannot be used."""
        self._user_dir, self._path = setup.user_dir, setup.path
        self._hooks = [SampleHook(hook, setup.user_dir) for hook in setup.hooks]
        self._functions: dict[str, GenerateFunction] = {}
        if setup.path:
            self._function(setup.path)
        self._timeout_s, self._tokenizer, self._log, self._fetch = setup.timeout_s, tokenizer, log, fetch
        self._args, self._vocabulary = ArgsView(setup.args), vocabulary_of(setup.tokenizer)
        self._prompts, self._loop, self._http = Prompts(log), UserLoop(room), UserLoop(1, "listener")

    def close(self) -> None:
        """End the functions' thread, and that of their listeners."""
        self._loop.stop()
        self._http.stop()

    def _function(self, path: str) -> GenerateFunction:
        if path not in self._functions:
            self._functions[path] = GenerateFunction(path, self._user_dir, self._hooks)
        return self._functions[path]

    async def makes(self, request: RolloutRequested) -> bool:
        """Whether a generate function makes this rollout, and not the engine alone."""
        return bool(self._path or (await self._prompts.of(request.group)).generate_function_path)

    async def make(self, rollout: Rollout, context: RolloutContext) -> None:
        """Run the function, and append its result: the samples, or that the rollout is suspended.

        Continues after the last turn in the log. Raises what the worker appends as rollout.failed: PlugPointError
        where the function is at fault, EngineError where its engine is; and Conflict, StorageError.
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
        made = Made(request, prompt, tokens, journal.turns, engine, self._tokenizer, timings, code, self._vocabulary)
        events = completions(returned, made)
        await context.append([*events, *self._rewards(function, returned, events, request)])

    async def _read(self, rollout: Rollout) -> TurnLog:
        """The rollout's turns in the log; the fence moves to the last of them."""
        sample = rollout.request.sample
        turn_log = TurnLog(sample, self._fetch)
        subject = everything_about(self._log.run, sample)
        async for recorded in self._log.read(1, subject):
            event = recorded.envelope.event
            if isinstance(event, RolloutCompleted):
                raise Conflict(f"{sample} was completed meanwhile", subject=subject, expected=rollout.known.position)
            turn_log.apply(event)
            rollout.known.position = recorded.position
        return turn_log

    async def _run(
        self, function: GenerateFunction, request: RolloutRequested, prompt: PromptSubmitted, journal: Journal
    ) -> Any:
        """What the function returns. An error in its turns goes before what the function made of it."""
        args = CallArgs(self._args, lambda: listener.open())
        session = Session(journal, self._tokenizer, request.sampling, args, prompt.tools)
        here = asyncio.get_running_loop()
        listener = Listener(session, self._http, lambda: here.call_soon_threadsafe(lambda: running.cancel()))
        call = function(
            args,
            sample_to_make(request, prompt),
            sampling_params(request.sampling),
            rollout_id=request.min_version,
            evaluation=request.purpose is Purpose.EVAL,
            session=session,
        )
        running = asyncio.wrap_future(self._loop.begin(call))
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                returned = await running
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            check_cancelled()  # else what was cancelled is the function's own
            if journal.failure is not None:
                raise journal.failure from error
            if limit.expired():
                raise PlugPointError(
                    f"the generate function {function.name} took longer than {self._timeout_s:g} s for "
                    f"{request.sample} (--generate-timeout)"
                ) from error
            known = error if isinstance(error, SlimeEventsError) else function.error_of(error, listener.refused)
            raise known from error
        finally:
            await listener.close()
        if journal.failure is not None:
            raise journal.failure
        return returned

    def _rewards(
        self, function: GenerateFunction, returned: Any, events: list[RolloutCompleted], request: RolloutRequested
    ) -> list[Event]:
        """Rewards of the samples that the function graded itself. As in slime, a group grader overrides them."""
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
