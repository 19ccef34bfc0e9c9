"""The process that sends weight versions to groups of engines: `python -m actors.trainer.transfer_sender`.

`SenderProcess` starts it. It is rank 0 of each group, and takes the bytes from a version's stored files. The trainer
and its ranks are in no such group, so an engine that hangs or dies stops only this process, which the trainer kills.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.text import raised_text
from slime_events.core.child.frames import PeerEnded, receive_frame, send_frame
from slime_events.core.child.inside import connect
from slime_events.core.child.process import Child
from slime_events.core.run.own_python import own_command, own_path
from storage.weights.base_files import MANIFEST
from storage.weights.broadcast import LOOKUP, STREAM_DEPTH, bucket_bytes, buckets, group_name
from storage.weights.files import TensorView
from storage.weights.manifest import WeightManifest
from storage.weights.stored_version import opened

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import ProcessGroup, Work

LIKE_SGLANG = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
"""SGLang sets these for its processes, and all ranks of a group must agree on them."""


class Send(msgspec.Struct, frozen=True):
    """Request to send a version to a group."""

    epoch: Annotated[int, doc("Number of the group.")]
    url: Annotated[str, doc("Path or URL of the stored version.")]
    digest: Annotated[str, doc("Its digest.")]
    host: Annotated[str, doc("Address at which the members find the sender.")]
    world: Annotated[int, doc("Ranks of the group.")]
    backend: Annotated[str, doc("torch's backend.")]
    timeout_s: Annotated[float, doc("Seconds for the group to form, and for each operation.")]


class Listening(msgspec.Struct, frozen=True, tag=True):
    """First answer: members can come to this port."""

    port: int


class Over(msgspec.Struct, frozen=True, tag=True):
    """Last answer."""

    reason: Annotated[str, doc("Why it failed; empty if everything was sent.")] = ""


Answer = Listening | Over


class SenderProcess:
    """The process, seen by the trainer. `send` and `answer` raise PeerEnded or OSError if it has ended."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        environment = {**os.environ, **own_path(), **LIKE_SGLANG}
        self._child = Child(command or own_command("actors.trainer.transfer_sender"), environment=environment)
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

    def send(self, request: Send) -> Answer:
        """Begin to send; return where the sender listens. Blocks."""
        send_frame(self._child.connection, msgspec.msgpack.encode(request))
        return self.answer()

    def answer(self) -> Answer:
        """Return the next answer. Blocks until there is one."""
        payload = receive_frame(self._child.connection)
        if payload is None:
            raise PeerEnded(f"the sender of weights {self._child.ending()}")
        return self._decoder.decode(payload)

    def end(self) -> None:
        """Kill the process. A call that waits for an answer then raises PeerEnded."""
        self._child.end()

    def close(self) -> None:
        """Close the connection, when no call waits."""
        self._child.close()


def main() -> None:
    """Send versions until the connection ends."""
    connection = connect(*sys.argv[1:3])
    import torch.distributed  # noqa: F401  # before the first request

    while (payload := receive_frame(connection)) is not None:
        request = msgspec.msgpack.decode(payload, type=Send)
        reason = ""
        try:
            _send(request, connection)
        except Exception as error:  # any failure ends this transfer, and the next may succeed
            reason = raised_text(error)
        send_frame(connection, msgspec.msgpack.encode(Over(reason)))


def _send(request: Send, connection: socket.socket) -> None:
    import torch

    with ExitStack() as stack:
        version = stack.enter_context(opened(request.url))
        root, manifest = version.root, version.manifest
        if manifest.digest != request.digest:
            raise WeightsDamaged(f"{root} has weights {manifest.digest}, and {request.digest} was published")
        store = _listen(request)
        store.set(LOOKUP, (root / MANIFEST).read_text())
        send_frame(connection, msgspec.msgpack.encode(Listening(store.port)))
        group = _join(store, request)
        stack.callback(torch.distributed.destroy_process_group, group)
        _broadcast(group, version.tensors, manifest, request.backend)


def _listen(request: Send) -> TCPStore:
    """Return a store that listens only on the address of the request."""
    from torch._C._distributed_c10d import TCPStore

    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    listening = socket.create_server((request.host, 0), family=family)
    port = listening.getsockname()[1]
    timeout = timedelta(seconds=request.timeout_s)
    return TCPStore(
        request.host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def _join(store: TCPStore, request: Send) -> ProcessGroup:
    """Form the group, as SGLang's `init_custom_process_group` does on the other side."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import Backend
    from torch.distributed.distributed_c10d import GroupName, _new_process_group_helper, _world

    name = GroupName(group_name(request.epoch))
    timeout = timedelta(seconds=request.timeout_s)
    group: ProcessGroup
    group, _ = _new_process_group_helper(
        request.world, 0, [], Backend(request.backend), PrefixStore(name, store), group_name=name, timeout=timeout
    )
    _world.pg_group_ranks[group] = {rank: rank for rank in range(request.world)}
    return group


def _broadcast(group: ProcessGroup, tensors: Mapping[str, TensorView], manifest: WeightManifest, backend: str) -> None:
    on_way: deque[tuple[torch.Tensor, Work]] = deque()
    depth = STREAM_DEPTH if backend == "gloo" else 0
    for names in buckets(manifest, bucket_bytes(backend)):
        bucket = _joined([tensors[name].data for name in names])
        if backend != "gloo":
            bucket = bucket.to("cuda")
        on_way.append((bucket, _begin_bucket(group, bucket)))
        if len(on_way) > depth:
            _end_bucket(*on_way.popleft())
    while on_way:
        _end_bucket(*on_way.popleft())


def _joined(parts: Sequence[memoryview]) -> torch.Tensor:
    """Return the bytes of tensors behind each other: of their file if they lie there so, or else a copy."""
    import numpy as np
    import torch

    parts = [part for part in parts if part.nbytes]
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    starts = [array.ctypes.data for array in arrays]
    ends = [start + array.size for start, array in zip(starts, arrays, strict=True)]
    if not parts or starts[1:] != ends[:-1] or any(part.obj is not parts[0].obj for part in parts):
        return torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *arrays]))
    whole = np.frombuffer(memoryview(parts[0].obj), np.uint8)
    begin = starts[0] - whole.ctypes.data
    with warnings.catch_warnings(action="ignore"):  # the file is mapped for reading, and a broadcast only reads it
        return torch.from_numpy(whole[begin : begin + ends[-1] - starts[0]])


def _begin_bucket(group: ProcessGroup, bucket: torch.Tensor) -> Work:
    import torch

    work: Work = torch.distributed.broadcast(bucket, src=0, group=group, async_op=True)
    return work


def _end_bucket(bucket: torch.Tensor, work: Work) -> None:
    import torch

    work.wait()
    if bucket.is_cuda:
        torch.cuda.synchronize()  # the next bucket takes this memory


if __name__ == "__main__":
    main()
