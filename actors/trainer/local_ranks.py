"""`LocalRanks`: trainer ranks as local processes, for offline work on a log without Ray or a live run."""

import asyncio
import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec, TypeVar

from actors.backends import Backend, call_by_name, rank_class
from actors.trainer.ranks import Ranks, collective, rendezvous_address
from schemas.errors import RankLost, TrainerError
from schemas.text import raised_text
from slime_events.core.child.inside import connect
from slime_events.core.child.process import Child
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.process_environment import KEEP_MEMORY, ONE_THREAD, rank_secrets, rank_variables
from slime_events.plugins.trainer_points import rank_args

T = TypeVar("T")
P = ParamSpec("P")
Request = tuple[str, tuple[object, ...], dict[str, object]]
"""Name, positional and keyword arguments of a call that a rank's process makes."""
READY, START = "ready", "start"
"""Requests to a rank's process beside calls of its rank: answer when all imports are done, and build the rank."""
CLOSE_S = 10.0
"""Seconds after which a rank that has not left its group is killed."""
QUOTED_BYTES = 600
"""Bytes at the end of a lost rank's output that its error quotes."""


class RankProcess:
    """A started process of this module. It answers calls in order, and ends when the pipe closes."""

    def __init__(self, rank: int, environment: Mapping[str, str]) -> None:
        self._rank, self._is_called = rank, False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rank{rank}")
        self._child = Child(
            own_command("actors.trainer.local_ranks"),
            environment={**os.environ, **own_path(), **KEEP_MEMORY, **ONE_THREAD, **environment},
            output=self._output,
        )
        self._pipe = Connection(self._child.connection.detach())

    async def ready(self) -> None:
        """Wait until the process has imported its modules. Raises as `call`."""
        await self._request(READY)

    async def start(self, settings: TrainSettings, rank: int, world_size: int, master: str) -> None:
        """Build the rank with the settings of a run. Raises as `call`, and as `RankClass`."""
        shown = rank_args(settings)
        await self._request(START, settings.trainer, settings.algorithm, rank, world_size, master, shown)

    async def call(self, method: Callable[Concatenate[Backend, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the rank; return its result or raise its error. Raises RankLost if the process has ended."""
        result: T = await self._request(method.__name__, *args, **kwargs)
        return result

    async def _request(self, name: str, *args: object, **kwargs: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, (name, args, kwargs))

    async def close(self) -> None:
        """Let the rank leave its group and end. During a call, kill it."""
        if self._is_called:
            self.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown()

    def kill(self) -> None:
        """Kill the process; open calls raise RankLost."""
        self._child.kill()

    def _call(self, request: Request) -> Any:
        self._is_called = True
        try:
            self._pipe.send(request)
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RankLost(self._loss()) from error
        finally:
            self._is_called = False
        if done:
            return value
        raise value

    def _loss(self) -> str:
        self._child.wait(CLOSE_S)
        code = self._child.code
        how = "does not answer" if code is None else "was killed" if code == -9 else f"has ended with code {code}"
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - QUOTED_BYTES))
        last = self._output.read().decode(errors="replace").strip()
        return f"rank {self._rank} {how}" + (f"; its last output: {last}" if last else "")

    def _end(self) -> None:
        self._pipe.close()
        self._child.end(CLOSE_S)
        self._output.close()


class LocalRanks(Ranks):
    """All ranks of a trainer. processes: in the order of ranks."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self._processes = processes

    async def everywhere(self, method: Callable[Concatenate[Backend, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        calls = [process.call(method, *args, **kwargs) for process in self._processes]
        return await collective(calls, give_up=self.kill)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


@contextlib.asynccontextmanager
async def local_ranks(settings: TrainSettings) -> AsyncIterator[LocalRanks]:
    """Start ranks with the initial weights of a run with these settings, in as many processes as its trainer has.

    The ranks train like the run's own: the same code, threads and environment give the same digests on the same
    hardware and versions. Raises CheckpointMismatch, ConfigError, TrainerError as `TrainerRank`.
    """
    trainer, world = settings.trainer, settings.trainer.world_size
    environment = rank_variables(trainer) | rank_secrets(trainer)
    processes = [RankProcess(rank, environment) for rank in range(world)]
    try:
        ranks = LocalRanks(processes)
        # Imports take seconds, in which another process could take a chosen port.
        await collective([process.ready() for process in processes], give_up=ranks.kill)
        master = rendezvous_address()
        starts = [process.start(settings, rank, world, master) for rank, process in enumerate(processes)]
        await collective(starts, give_up=ranks.kill)
        yield ranks
    finally:
        await asyncio.gather(*(process.close() for process in processes))


def main() -> None:
    """Serve the calls of a `RankProcess` until the pipe is closed."""
    pipe = Connection(connect(*sys.argv[1:]).detach())
    gc.disable()  # objects of imports are never garbage: scanning them costs a tenth of the time
    start = rank_class()  # takes seconds, in which the parent reads the log
    gc.freeze()
    gc.enable()
    rank: Backend | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, args, kwargs = pipe.recv()
            done = True
            value: Any = None
            try:
                if name == START:
                    rank = start(*args)
                elif name != READY:
                    assert rank is not None, "the parent starts the rank first"
                    value = call_by_name(rank, name, *args, **kwargs)
                if name == Backend.export_bytes.__name__:
                    value = [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in value]
            except Exception as error:  # sent to the caller, which decides whether to use the rank further
                plain = type(error).__module__ == "schemas.errors"
                done, value = False, error if plain else TrainerError(raised_text(error))
            pipe.send((done, value))
            del value  # exported weights are as large as the model
    if rank is not None:
        rank.close()


if __name__ == "__main__":
    main()
