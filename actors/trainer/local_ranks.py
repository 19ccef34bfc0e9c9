"""`LocalRanks`: trainer ranks that are processes of this machine: for work on a log, without Ray and a run."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from actors.trainer.ranks import Ranks, collective, rendezvous_address
from schemas.errors import RankLost, TrainerError
from schemas.text import raised_text
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.process_environment import KEEP_MEMORY, ONE_THREAD, rank_secrets, rank_variables
from slime_events.plugins.trainer_points import rank_args

CLOSE_S = 10.0
"""Seconds that a rank has to leave its group; then it is killed."""
QUOTED_BYTES = 600
"""Of a lost rank's output, shown with its loss."""


class RankProcess:
    """A process that has been started: `python -m actors.trainer.local_ranks <pipe's fd>`.

    It answers calls from the pipe in order and ends when the pipe closes, so it never outlives its parent.
    """

    def __init__(self, rank: int, environment: Mapping[str, str]) -> None:
        self._rank, self._is_called = rank, False
        self._pipe, theirs = multiprocessing.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rank{rank}")
        with theirs:
            self._process = subprocess.Popen(
                own_command("actors.trainer.local_ranks", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **own_path(), **KEEP_MEMORY, **ONE_THREAD, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the terminal is its parent's to handle
            )

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the rank's method gave, or raises what it raised. Raises RankLost where the process has ended."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, method, arguments)

    async def close(self) -> None:
        """Let it leave the group and end; in the middle of a call it is killed."""
        if self._is_called:
            self.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown()

    def kill(self) -> None:
        """End it at once; calls that wait for an answer get RankLost."""
        self._process.kill()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self._is_called = True
        try:
            self._pipe.send((method, arguments))
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RankLost(self._loss()) from error
        finally:
            self._is_called = False
        if done:
            return value
        raise value

    def _loss(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        code = self._process.returncode
        how = "does not answer" if code is None else "was killed" if code == -9 else f"has ended with code {code}"
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - QUOTED_BYTES))
        last = self._output.read().decode(errors="replace").strip()
        return f"rank {self._rank} {how}" + (f"; its last output: {last}" if last else "")

    def _end(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


class LocalRanks(Ranks):
    """One for each process, in the order of ranks."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self._processes = processes

    async def everywhere(self, method: str, *args: Any) -> Any:
        return await collective([process.call(method, *args) for process in self._processes], give_up=self.kill)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


@contextlib.asynccontextmanager
async def local_ranks(settings: TrainSettings) -> AsyncIterator[LocalRanks]:
    """Ranks with the weights that a run of these settings begins with, in as many processes as its trainer has.

    They train as the run's own do: the same code, threads and environment give the same digests on the same hardware
    and versions. Raises CheckpointMismatch, ConfigError, TrainerError as `TrainerRank`.
    """
    trainer, algorithm, world = settings.trainer, settings.algorithm, settings.trainer.world_size
    environment = rank_variables(trainer) | rank_secrets(trainer)
    processes = [RankProcess(rank, environment) for rank in range(world)]
    try:
        ranks = LocalRanks(processes)
        await ranks.everywhere("ready")  # they import for seconds, in which an address chosen before could be taken
        master = rendezvous_address()
        given = (trainer, algorithm)
        shown = rank_args(settings)
        starts = [one.call("start", *given, rank, world, master, shown) for rank, one in enumerate(processes)]
        await collective(starts, give_up=ranks.kill)
        yield ranks
    finally:
        await asyncio.gather(*(process.close() for process in processes))


def main() -> None:
    """Serve the calls of a `RankProcess` until the pipe is closed."""
    pipe = Connection(int(sys.argv[1]))
    gc.disable()  # nothing that an import makes is garbage: looking through it costs a tenth of the time
    from actors.megatron.rank import TrainerRank  # takes seconds, in which the parent reads the log

    gc.freeze()
    gc.enable()
    rank: TrainerRank | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            done = True
            value: Any = None
            try:
                if method == "start":
                    rank = TrainerRank(*arguments)
                elif method != "ready":  # which is answered once everything is imported
                    value = getattr(rank, method)(*arguments)
                if method == "export_bytes":
                    value = [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in value]
            except Exception as error:  # the reason is the caller's, who decides whether the rank goes on
                plain = type(error).__module__ == "schemas.errors"
                done, value = False, error if plain else TrainerError(raised_text(error))
            pipe.send((done, value))
            del value  # exported weights are as large as the model
    if rank is not None:
        rank.close()


if __name__ == "__main__":
    main()
