"""The process that holds SGLang: `python -m serve_apps.engine.host <socket fd> <folder>`, run by `SglangEngine`.

SGLang ends its whole process tree when one of its children fails, sets signal handlers and an event-loop policy, and
takes seconds to import. In a process of its own none of that reaches the caller, and the scheduler can be forked from
it, which saves importing SGLang twice. This process ends with its parent.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schemas.rollouts import StopReason
from serve_apps.engine import messages
from serve_apps.engine.end_token import end_tokens
from serve_apps.engine.engine_folder import clean
from serve_apps.engine.host_end import end, end_with_parent, end_with_schedulers
from serve_apps.engine.pieces import how_it_ended, kept_at_seam, sampling_parameters, spans_within
from serve_apps.engine.scoring import Scoring
from slime_events.core.run.process_environment import GENERATES, yield_to_others


def main() -> None:
    """Read `Launch`, start SGLang, serve until the socket closes; then end everything in this session."""
    yield_to_others(GENERATES)
    connection, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    connection.set_inheritable(False)
    threading.Thread(target=end_with_parent, args=(os.getppid(), folder), daemon=True).start()
    try:
        started = time.monotonic()
        gc.disable()  # nothing that an import makes is garbage: looking through it costs a tenth of the start
        import sglang.srt.entrypoints.engine  # noqa: F401

        gc.freeze()
        gc.enable()
        imported = time.monotonic()
        launch = msgspec.msgpack.decode(messages.receive_frame(connection), type=messages.Launch)
        engine = _start(launch, folder.name)
        engine.tokenizer_manager._subprocess_watchdog.stop()  # it looks once a second, the thread below at once
        threading.Thread(target=end_with_schedulers, daemon=True).start()
        seconds = {"import": imported - started, "launch": time.monotonic() - imported}
        asyncio.set_event_loop(engine.loop)
        engine.loop.run_until_complete(Host(engine, connection).serve(seconds))
    except Exception as error:  # the last handler of this process: the reason goes to the caller, the process ends
        connection.setblocking(True)
        connection.sendall(messages.encode(messages.Failed(f"{type(error).__name__}: {error}")))
        sys.excepthook(*sys.exc_info())
    finally:
        clean(folder)  # a caller that was killed will not
        end()


def _start(launch: messages.Launch, name: str) -> Any:
    """SGLang's Engine without its detokenizer process: text is wanted once per response and is decoded here."""
    from sglang.srt.entrypoints.engine import Engine

    class LeanEngine(Engine):  # type: ignore[misc]
        @classmethod
        def _launch_scheduler_processes(cls, server_args: Any, port_args: Any, *rest: Any, **options: Any) -> Any:
            port_args.detokenizer_ipc_name = port_args.tokenizer_ipc_name
            port_args.instance_id = name
            if launch.fork:
                multiprocessing.set_start_method("fork", force=True)
            return super()._launch_scheduler_processes(server_args, port_args, *rest, **options)

        @classmethod
        def _launch_detokenizer_subprocesses(cls, **_: Any) -> tuple[list[Any], list[str]]:
            return [], []

    return LeanEngine(**launch.arguments)


class Host:
    """SGLang's tokenizer manager on one side, the caller's socket on the other."""

    def __init__(self, engine: Any, connection: socket.socket) -> None:
        self.manager = engine.tokenizer_manager
        self.end_tokens = end_tokens(self.manager)
        self.loop: asyncio.AbstractEventLoop = engine.loop
        self.connection = connection
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, seconds: dict[str, float]) -> None:
        """Until the caller closes the socket."""
        reader, writer = await asyncio.open_connection(sock=self.connection)
        self.sender = messages.Sender(writer)
        self.manager.auto_create_handle_loop()
        self.send(messages.Ready(seconds, tuple(p.pid or 0 for p in multiprocessing.active_children())))
        decoder = msgspec.msgpack.Decoder(messages.ToHost)
        while True:
            try:
                body = await messages.read_frame(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self._take(decoder.decode(body))

    def send(self, frame: messages.FromHost) -> None:
        """Queue a frame for the caller."""
        self.sender.send(frame)

    def _take(self, frame: messages.ToHost) -> None:
        match frame:
            case messages.Generate():
                self._do(self._generate(frame), partial(messages.Refused, frame.id))
            case messages.Score():
                self._do(self._score(frame), partial(messages.Refused, frame.id))
            case messages.UpdateWeights():
                self._do(self._update(frame), partial(messages.Answer, frame.call))
            case messages.Abort():
                # Not before SGLang knows the request, which may have come just now.
                self.loop.call_soon(self.manager.abort_request, frame.id)
            case messages.Ping():
                self.send(messages.Answer(frame.call))
            case messages.Launch():
                self.send(messages.Failed("launched twice"))

    def _do(self, work: Coroutine[Any, Any, None], failed: Callable[[str], messages.FromHost]) -> None:
        task = self.loop.create_task(self._answered(work, failed))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answered(self, work: Coroutine[Any, Any, None], failed: Callable[[str], messages.FromHost]) -> None:
        try:
            await work
        except ValueError as error:  # SGLang's word for a request that it cannot take
            self.send(failed(str(error)))
        except Exception as error:  # whatever it is, the caller waits for an answer
            traceback.print_exception(error)
            self.send(failed(f"{type(error).__name__}: {error}"))

    async def _generate(self, frame: messages.Generate) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        prompt = np.frombuffer(frame.prompt, dtype="<i4").tolist()
        response: list[int] = np.frombuffer(frame.resume, dtype="<i4").tolist()
        if (ended := self._how_it_ended(frame, response)) is not None:
            text = self._text(response, frame.sampling.skip_special_tokens)
            self.send(messages.Piece(frame.id, b"", b"", (), ended, text))
            return
        resumed = len(response)
        request = GenerateReqInput(
            input_ids=prompt + response,
            sampling_params=sampling_parameters(frame, resumed),
            return_logprob=True,
            stream=True,
            rid=frame.id,
        )
        async for output in self.manager.generate_request(request, None):
            if self._piece(frame, output["meta_info"], output["output_ids"], resumed, response):
                break

    async def _score(self, frame: messages.Score) -> None:
        packed = np.array(await Scoring(self.manager, frame).log_probs(), dtype="<f4").tobytes()
        self.send(messages.Piece(frame.id, frame.tokens, packed, (), StopReason.LENGTH, ""))

    def _piece(
        self, frame: messages.Generate, meta: dict[str, Any], tokens: list[int], resumed: int, response: list[int]
    ) -> bool:
        """Send one step of a response and add it to `response`, which holds what came before; whether it has ended."""
        start = len(response)
        log_probs = [pair[0] for pair in meta["output_token_logprobs"][-len(tokens) :]] if tokens else []
        finish = StopReason(meta["finish_reason"]["type"]) if meta["finish_reason"] else None
        if finish is StopReason.ABORT:
            finish = self._how_it_ended(frame, response + tokens) or finish
        if (kept := self._kept_at_seam(frame, response, tokens, resumed)) is not None:
            tokens, log_probs, finish = tokens[:kept], log_probs[:kept], StopReason.STOP
            self.manager.abort_request(frame.id)
        response.extend(tokens)
        self.send(
            messages.Piece(
                frame.id,
                np.array(tokens, dtype="<i4").tobytes(),
                np.array(log_probs, dtype="<f4").tobytes(),
                spans_within(meta.get("weight_versions") or [], resumed, start, start + len(tokens)),
                finish,
                None if finish is None else self._text(response, frame.sampling.skip_special_tokens),
            )
        )
        return finish is not None

    def _kept_at_seam(
        self, frame: messages.Generate, response: list[int], tokens: list[int], resumed: int
    ) -> int | None:
        """New tokens up to the end of a stop string that began in the resumed part, where SGLang does not look."""
        if not (frame.sampling.stop and resumed):
            return None
        return kept_at_seam(
            response[:resumed],
            response[resumed:] + tokens,
            len(response) - resumed,
            frame.sampling.stop,
            lambda ids: self._text(ids, frame.sampling.skip_special_tokens),
        )

    def _how_it_ended(self, frame: messages.Generate, response: list[int]) -> StopReason | None:
        return how_it_ended(
            response,
            frame.sampling,
            self.end_tokens,
            lambda ids: self._text(ids, frame.sampling.skip_special_tokens),
        )

    def _text(self, tokens: list[int], skip_special_tokens: bool) -> str:
        text: str = self.manager.tokenizer.decode(
            tokens, skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=False
        )
        return text

    async def _update(self, frame: messages.UpdateWeights) -> None:
        """Retract what runs (its keys and values are of the old weights), load, flush the cache, go on."""
        from sglang.srt.managers import io_struct

        await self.manager.pause_generation(io_struct.PauseGenerationReqInput(mode="retract"))
        try:
            request = io_struct.UpdateWeightFromDiskReqInput(
                model_path=frame.folder, weight_version=str(frame.version), flush_cache=True
            )
            success, message, _ = await self.manager.update_weights_from_disk(request, None)
        finally:
            await self.manager.continue_generation(io_struct.ContinueGenerationReqInput(torch_empty_cache=False))
        self.send(messages.Answer(frame.call, None if success else message))


if __name__ == "__main__":
    main()
