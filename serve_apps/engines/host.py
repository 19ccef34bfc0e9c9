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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.references import expand_all
from schemas.rollouts import StopReason
from schemas.text import message_text, raised_text
from serve_apps.engines import messages
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.engines.engine_folder import ARGUMENTS, clean
from serve_apps.engines.plugin import SWITCH
from serve_apps.engines.received_weights import receive
from serve_apps.engines.response import Response
from serve_apps.engines.routed_experts import expert_shape
from serve_apps.engines.scores import score
from serve_apps.engines.template import Job, leave_template
from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import PeerEnded
from slime_events.core.child.inside import connection_of
from slime_events.core.child.process import kill_group
from slime_events.core.child.process_table import runs
from slime_events.core.run.process_environment import NICE_GENERATION, yield_to_others

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.server_args import PortArgs, ServerArgs

OWNER_CHECK_S = 0.5
RESTING = ["kv_cache", "weights"]
"""SGLang's tags of the memory that a resting engine gives back. CUDA graphs stay."""


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
                case messages.ReceiveWeights():
                    self.sender.send(messages.Answer(frame.id, await receive(self.manager, frame)))
                case messages.Rest():
                    await self._rest(frame.id)
                case messages.Wake():
                    await self._wake(frame.id)
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

        response = Response(request, id, self.end_tokens, self._decode, self.experts)
        if (nothing := response.ended()) is not None:
            self.sender.send(messages.Piece(id, nothing))
            return
        generate = GenerateReqInput(**response.fields(rid=id))
        async for output in self.manager.generate_request(generate, None):
            delta = response.add(output["meta_info"], output["output_ids"], version=None, is_aborted=id in self.aborted)
            if response.is_cut:
                self.manager.abort_request(id)
            self.sender.send(messages.Piece(id, delta))
            if delta.finish is not None:
                break

    def _decode(self, tokens: list[int], skip: bool) -> str:
        return str(self.manager.tokenizer.decode(tokens, skip_special_tokens=skip, spaces_between_special_tokens=False))

    async def _score(self, frame: messages.Score) -> None:
        log_probs = await score(frame.request, frame.tokens, partial(self._ask, frame.id))
        self.sender.send(messages.Piece(frame.id, Delta(frame.tokens, log_probs, (), StopReason.LENGTH, "")))

    async def _ask(self, id: str, part: str, /, **fields: Any) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        async for output in self.manager.generate_request(GenerateReqInput(rid=id + part, **fields), None):
            meta: dict[str, Any] = output["meta_info"]
        return meta

    async def _update(self, frame: messages.UpdateWeights) -> None:
        """Retract the running requests (their keys and values are outdated), load, flush the cache, continue.

        After a failure requests do not continue: SGLang may have replaced a part of the weights.
        """
        from sglang.srt.managers import io_struct

        await self.manager.pause_generation(io_struct.PauseGenerationReqInput(mode="retract"))
        request = io_struct.UpdateWeightFromDiskReqInput(
            model_path=frame.folder, weight_version=str(frame.version), flush_cache=True
        )
        success, message, _ = await self.manager.update_weights_from_disk(request, None)
        if success:
            await self.manager.continue_generation(io_struct.ContinueGenerationReqInput(torch_empty_cache=False))
        self.sender.send(messages.Answer(frame.id, None if success else message))

    async def _rest(self, id: str) -> None:
        """Release the memory of weights and cache. Nothing is generated until the next update."""
        from sglang.srt.managers import io_struct

        await self.manager.pause_generation(io_struct.PauseGenerationReqInput(mode="retract"))
        await self.manager.release_memory_occupation(io_struct.ReleaseMemoryOccupationReqInput(tags=RESTING))
        self.sender.send(messages.Answer(id))

    async def _wake(self, id: str) -> None:
        """Take the memory again. Generation stays paused, since the weights have no values until the next update."""
        from sglang.srt.managers import io_struct

        await self.manager.resume_memory_occupation(io_struct.ResumeMemoryOccupationReqInput(tags=RESTING))
        self.sender.send(messages.Answer(id))


def end_tokens(manager: TokenizerManager) -> frozenset[int]:
    """Return the tokens that end every response in SGLang's scheduler."""
    tokenizer, model = manager.tokenizer, manager.model_config
    more = getattr(tokenizer, "additional_stop_token_ids", None) or ()
    return frozenset({tokenizer.eos_token_id, *(model.hf_eos_token_id or ()), *more} - {None})


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
