"""The process that holds SGLang: `python -m serve_apps.engines.host <socket> <owner> <folder> [<template>]`.

`SglangEngine` starts it, or the template that the first engine left forks it (serve_apps/engines/template.py).

SGLang ends its whole process tree when one of its children fails, sets signal handlers and an event-loop policy, and
takes seconds to import. In its own process none of that affects the caller, and the scheduler can be forked from it,
which avoids a second import of SGLang. This process ends with its owner.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.references import expand_all
from schemas.rollouts import Sampling, StopReason, WeightSpan
from schemas.text import message_text, raised_text
from serve_apps.engines import messages
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens, sampling_params
from serve_apps.engines.engine_folder import ARGUMENTS, clean
from serve_apps.engines.plugin import SWITCH
from serve_apps.engines.routed_experts import ROUTED, expert_shape
from serve_apps.engines.template import Job, leave_template
from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import PeerEnded
from slime_events.core.child.inside import connection_of
from slime_events.core.child.process import kill_group
from slime_events.core.child.process_table import runs
from slime_events.core.run.process_environment import NICE_GENERATION, yield_to_others
from slime_events.plugins.plain_values import plain

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.server_args import PortArgs, ServerArgs

KNOWN_REASONS = frozenset(StopReason)
KEPT, KEPT_LOG_PROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
IN_DELTA = frozenset({"output_token_logprobs", "weight_versions", KEPT, KEPT_LOG_PROBS, f"{KEPT}_length"})
"""Entries of an answer's `meta_info` that a delta has in other fields."""
OWNER_CHECK_S = 0.5
UNSCALED = (0.0, 1.0)
"""Temperatures with log-probs of the logits themselves; 0 is greedy."""
SCORED_TOKENS = 64
"""Tokens that are scored concurrently, if each needs its own request."""


def main() -> None:
    """Start SGLang and serve until the socket closes. Then end every process of this session."""
    if os.environ.get(SWITCH) != "cuda":
        yield_to_others(NICE_GENERATION)
    descriptor, owner, folder, *template = sys.argv[1:]
    job = Job(connection_of(descriptor), Path(folder), int(owner))
    threading.Thread(target=end_with_owner, args=(job.owner, job.folder), daemon=True).start()
    try:
        gc.disable()  # an import leaves no garbage, but collecting takes a tenth of the start
        import sglang.srt.entrypoints.engine  # noqa: F401

        gc.freeze()
        gc.enable()
        if template and (forked := leave_template(template[0], job)) is not job:
            job = forked
            threading.Thread(target=end_with_owner, args=(job.owner, job.folder), daemon=True).start()
        engine = _start(job.folder)
        engine.tokenizer_manager._subprocess_watchdog.stop()  # it checks once a second, the thread below immediately
        threading.Thread(target=end_with_schedulers, daemon=True).start()
        asyncio.set_event_loop(engine.loop)
        engine.loop.run_until_complete(Host(engine, job.connection).serve())
    except Exception as error:  # the last handler: send the reason to the caller and end
        job.connection.setblocking(True)
        job.connection.sendall(messages.encode(messages.Failed(raised_text(error))))
        sys.excepthook(*sys.exc_info())
    finally:
        clean(job.folder)  # a killed caller does not
        end()


def _start(folder: Path) -> Engine:
    """Return SGLang's Engine without its detokenizer process: text is needed once per response and is decoded here."""
    from sglang.srt.entrypoints.engine import Engine

    class LeanEngine(Engine):  # type: ignore[misc]
        @classmethod
        def _launch_scheduler_processes(
            cls, server_args: ServerArgs, port_args: PortArgs, *rest: Any, **options: Any
        ) -> Any:
            port_args.detokenizer_ipc_name = port_args.tokenizer_ipc_name
            port_args.instance_id = folder.name
            if os.environ[SWITCH] == "cpu":  # a copy of this process has SGLang imported
                multiprocessing.set_start_method("fork", force=True)
            return super()._launch_scheduler_processes(server_args, port_args, *rest, **options)

        @classmethod
        def _launch_detokenizer_subprocesses(cls, **_: object) -> tuple[list[Any], list[str]]:
            return [], []

    return LeanEngine(**expand_all(json.loads((folder / ARGUMENTS).read_bytes())))


class Host:
    """Connects SGLang's tokenizer manager with the caller's socket."""

    def __init__(self, engine: Engine, connection: socket.socket) -> None:
        self.manager = engine.tokenizer_manager
        self.end_tokens = end_tokens(self.manager)
        self.experts = expert_shape(self.manager)
        self.loop: asyncio.AbstractEventLoop = engine.loop
        self.connection = connection
        self.tasks: set[asyncio.Task[None]] = set()
        self.aborted: set[str] = set()

    async def serve(self) -> None:
        """Serve until the caller closes the socket."""
        reader, writer = await asyncio.open_connection(sock=self.connection)
        self.sender, frames = messages.Sender(writer), FrameReader(reader)
        self.manager.auto_create_handle_loop()
        self.sender.send(messages.Ready(tuple(p.pid or 0 for p in multiprocessing.active_children())))
        while True:
            try:
                frame = messages.to_host.decode(await frames.next())
            except PeerEnded:
                return
            if isinstance(frame, messages.Abort):
                # Deferred: SGLang may not know the request yet.
                self.aborted.add(frame.id)
                self.loop.call_soon(self.manager.abort_request, frame.id)
                continue
            task = self.loop.create_task(self._answer(frame))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _answer(self, frame: messages.Request) -> None:
        try:
            match frame:
                case messages.Generate():
                    await self._generate(frame.id, frame.request)
                case messages.Score():
                    await self._score(frame)
                case messages.UpdateWeights():
                    await self._update(frame)
                case messages.Ping():
                    self.sender.send(messages.Answer(frame.id))
        except (ValueError, TypeError) as error:  # SGLang refuses the request
            self.sender.send(messages.Answer(frame.id, message_text(error)))
        except Exception as error:  # any other error: the caller waits for an answer
            traceback.print_exception(error)
            self.sender.send(messages.Answer(frame.id, raised_text(error)))
        finally:
            self.aborted.discard(frame.id)

    async def _generate(self, id: str, request: GenerateRequest) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        response = request.resume.tolist()
        if (ended := self._how_it_ended(request, response)) is not None:
            nothing = Delta(request.resume[:0], np.zeros(0, np.float32), (), ended, self._text(request, response))
            self.sender.send(messages.Piece(id, nothing))
            return
        rest = {"max_new_tokens": request.left, "sampling_seed": request.seed}
        if request.sampling.min_new_tokens:
            rest["min_new_tokens"] = max(0, request.sampling.min_new_tokens - len(response))
        generate = GenerateReqInput(
            input_ids=request.prompt.tolist() + response,
            sampling_params=sampling_params(request.sampling) | rest,
            return_logprob=True,
            return_sampling_mask=request.keeps,
            stream=True,
            rid=id,
            **({"return_routed_experts": True} if request.routes and self.experts else {}) | request.payload,
        )
        async for output in self.manager.generate_request(generate, None):
            if self._piece(id, request, output["meta_info"], output["output_ids"], response):
                break

    async def _score(self, frame: messages.Score) -> None:
        """Return log-probs of the frame's tokens.

        SGLang scores tokens in one pass, but always at temperature 1. For any other temperature there is one request
        per token: it generates after the tokens before, and returns the log-prob of the token to score.
        """
        before = frame.request.prompt.tolist() + frame.request.resume.tolist()
        tokens: list[int] = frame.tokens.tolist()
        log_probs: list[float] = []
        if tokens and frame.request.sampling.temperature in UNSCALED:
            start = max(0, len(before) - 1)
            meta = await self._score_request(frame, "", before + tokens, logprob_start_len=start)
            scores = meta["input_token_logprobs"][-len(tokens) :]
            if [entry[1] for entry in scores] != tokens:
                count = len(meta["input_token_logprobs"])
                raise ValueError(f"SGLang returned {count} log-probs, which do not belong to the {len(tokens)} tokens")
            log_probs = [float(entry[0]) for entry in scores]
        elif tokens:
            room = asyncio.Semaphore(SCORED_TOKENS)

            async def score(index: int) -> float:
                prefix = before + tokens[:index]
                async with room:
                    meta = await self._score_request(frame, f"-{index:08d}", prefix, token_ids_logprob=[tokens[index]])
                return float(meta["output_token_ids_logprobs"][0][0][0])

            log_probs = await asyncio.gather(*map(score, range(len(tokens))))
        scored = Delta(frame.tokens, np.array(log_probs, np.float32), (), StopReason.LENGTH, "")
        self.sender.send(messages.Piece(frame.id, scored))

    async def _score_request(
        self, frame: messages.Score, part: str, tokens: list[int], **fields: Any
    ) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        parameters = {"max_new_tokens": 1, "temperature": frame.request.sampling.temperature, "sampling_seed": 0}
        request = GenerateReqInput(
            input_ids=tokens, sampling_params=parameters, return_logprob=True, rid=frame.id + part, **fields
        )
        async for output in self.manager.generate_request(request, None):
            meta: dict[str, Any] = output["meta_info"]
        return meta

    def _piece(
        self, id: str, request: GenerateRequest, meta: dict[str, Any], tokens: list[int], response: list[int]
    ) -> bool:
        """Send one step of a response and add it to `response`, the tokens before it. Return whether the response has
        ended.

        Raises ValueError with SGLang's reason if its scheduler refuses the request.
        """
        if (refusal := refusal_of(meta)) is not None and id not in self.aborted:
            raise ValueError(refusal)
        log_probs = [pair[0] for pair in (meta.get("output_token_logprobs") or [])[-len(tokens) :]] if tokens else []
        if len(log_probs) < len(tokens) and (meta["finish_reason"] or {}).get("type") == StopReason.ABORT:
            tokens, log_probs = [], []  # they were not sampled
        start, resumed, received = len(response), len(request.resume), len(tokens)
        reason = meta["finish_reason"]["type"] if meta["finish_reason"] else None
        finish = None if reason is None else StopReason(reason) if reason in KNOWN_REASONS else StopReason.STOP
        if finish is StopReason.ABORT:
            finish = self._how_it_ended(request, response + tokens) or finish
        kept = None
        if (stop := request.sampling.stop) and resumed:
            new = response[resumed:] + tokens
            kept = kept_at_seam(response[:resumed], new, start - resumed, stop, partial(self._text, request))
        if kept is not None:
            tokens, log_probs, finish = tokens[:kept], log_probs[:kept], StopReason.STOP
            self.manager.abort_request(id)
        response.extend(tokens)
        spans = spans_within(meta.get("weight_versions") or [], resumed, start, start + len(tokens))
        text = None if finish is None else self._text(request, response)
        has_meta = finish is not None and (request.payload or reason not in (*KNOWN_REASONS, None))
        hidden = IN_DELTA if request.payload.get("return_routed_experts") else IN_DELTA | {ROUTED}
        more = {name: plain(value) for name, value in meta.items() if name not in hidden} if has_meta else {}
        drawn_of = kept_tokens(meta, received, len(tokens)) if request.keeps and received else ()
        delta = Delta(np.array(tokens, np.int32), np.array(log_probs, np.float32), spans, finish, text, more, *drawn_of)
        if request.routes and self.experts and finish not in (None, StopReason.ABORT):
            delta = replace(delta, experts=self.experts.of_answer(id, meta, len(request.prompt) + len(response)))
        self.sender.send(messages.Piece(id, delta))
        return finish is not None

    def _how_it_ended(self, request: GenerateRequest, response: list[int]) -> StopReason | None:
        return how_it_ended(response, request.sampling, self.end_tokens, partial(self._text, request))

    def _text(self, request: GenerateRequest, tokens: list[int]) -> str:
        skip = request.sampling.skip_special_tokens
        return str(self.manager.tokenizer.decode(tokens, skip_special_tokens=skip, spaces_between_special_tokens=False))

    async def _update(self, frame: messages.UpdateWeights) -> None:
        """Retract the running requests (their keys and values are outdated), load, flush the cache, continue."""
        from sglang.srt.managers import io_struct

        await self.manager.pause_generation(io_struct.PauseGenerationReqInput(mode="retract"))
        try:
            request = io_struct.UpdateWeightFromDiskReqInput(
                model_path=frame.folder, weight_version=str(frame.version), flush_cache=True
            )
            success, message, _ = await self.manager.update_weights_from_disk(request, None)
        finally:
            await self.manager.continue_generation(io_struct.ContinueGenerationReqInput(torch_empty_cache=False))
        self.sender.send(messages.Answer(frame.id, None if success else message))


def refusal_of(meta: Mapping[str, Any]) -> str | None:
    """Return why SGLang's scheduler refuses a request, such as a grammar that does not compile; None for any other end.

    The scheduler reports a refusal as an abort, after a step with a token but no log-prob. A request that is aborted
    while it waits for its grammar ends the same way.
    """
    reason = meta["finish_reason"] or {}
    if reason.get("type") != StopReason.ABORT or reason.get("status_code") != HTTPStatus.BAD_REQUEST:
        return None
    return str(reason.get("message") or "no reason")


def end_tokens(manager: TokenizerManager) -> frozenset[int]:
    """Return the tokens that end every response in SGLang's scheduler."""
    tokenizer, model = manager.tokenizer, manager.model_config
    more = getattr(tokenizer, "additional_stop_token_ids", None) or ()
    return frozenset({tokenizer.eos_token_id, *(model.hf_eos_token_id or ()), *more} - {None})


def kept_tokens(meta: Mapping[str, Any], received: int, count: int) -> tuple[Tokens, Tokens, LogProbs]:
    """Return the last fields of a delta, for the first `count` of the `received` tokens of a step."""
    ids = [np.sort(np.array(kept, np.int32)) for kept in meta[KEPT][-received:][:count]]
    log_probs = np.array(meta[KEPT_LOG_PROBS][-received:][:count], np.float32)
    return np.concatenate([np.empty(0, np.int32), *ids]), np.array(list(map(len, ids)), np.int32), log_probs


def how_it_ended(
    response: list[int], sampling: Sampling, end_tokens: Collection[int], decode: Callable[[list[int]], str]
) -> StopReason | None:
    """Return how a whole response has ended by itself; None if there is more to generate.

    If a response ends in the step in which it is aborted, SGLang reports it as aborted. Resumed, it would get tokens
    after its end. `end_tokens` are the model's, in addition to those of the sampling.
    """
    ends = () if sampling.more.get("ignore_eos") else end_tokens
    if response and (response[-1] in ends or response[-1] in sampling.stop_token_ids):
        return StopReason.STOP
    if sampling.stop and response:
        text = decode(response[-4 * max(map(len, sampling.stop)) :])  # a token is at least one byte
        if any(stop in text for stop in sampling.stop):
            return StopReason.STOP
    return StopReason.LENGTH if len(response) >= sampling.max_new_tokens else None


def spans_within(versions: list[dict[str, Any]], resumed: int, start: int, end: int) -> tuple[WeightSpan, ...]:
    """Cut SGLang's spans, counted from the first new token, to the response positions [start, end)."""
    spans = (
        WeightSpan(max(start, v["start"] + resumed), min(end, v["end"] + resumed), int(v["version"])) for v in versions
    )
    return tuple(span for span in spans if span.start < span.end)


def kept_at_seam(
    resumed: list[int], new: list[int], seen: int, stop: tuple[str, ...], decode: Callable[[list[int]], str]
) -> int | None:
    """Return how many of new[seen:] to keep if a stop string crosses the seam of resumed | new; None if none does.

    SGLang does not look before the seam. A token is at least one byte and a character at most four, so the string
    cannot reach further than that.
    """
    reach = 4 * max(map(len, stop))
    before = resumed[-reach:]
    for end in range(seen + 1, min(reach, len(new)) + 1):
        text = decode(before + new[:end])
        if any(string in text and string not in decode(new[:end]) for string in stop):
            return end - seen
    return None


def end_with_owner(owner: int, folder: Path) -> None:
    """End once the process `owner` is gone, and clean the engine's folder: a killed owner does not."""
    while runs(owner):
        time.sleep(OWNER_CHECK_S)
    clean(folder)
    end()


def end() -> None:
    """End the whole engine. The caller made this process leader of a session: its process group is the engine."""
    sys.stderr.flush()
    kill_group(os.getpgid(0))


def end_with_schedulers() -> None:
    """End once a scheduler has. Runs in a thread: ZeroMQ can block the loop in a message to the scheduler."""
    schedulers = {process.sentinel: process for process in multiprocessing.active_children()}
    died = schedulers[multiprocessing.connection.wait(list(schedulers))[0]]  # type: ignore[index]
    died.join(1.0)
    print(f"SchedulerError: the process {died.pid} ended with exit code {died.exitcode}", file=sys.stderr)
    end()


if __name__ == "__main__":
    main()
