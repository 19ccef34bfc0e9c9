"""`RestingMemory`: give the memory of tensors back for a time, and bring it back with the same bytes.

Tensors stay as they are, with their views and everything that refers to them. Nobody may read or write them meanwhile.

    on CUDA  -> copies in pinned host memory, which stay allocated for the next rest. Storages are emptied, and torch's
                cache gives the memory to the device
    on CPUs  -> copies in a file without a name, on disk. Addresses stay valid, and the system takes the whole pages.
                torch cannot empty a storage that numpy has seen
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, UntypedStorage

DISK = "/var/tmp"
"""Folder of the file. The folder of temporary files, which an engine has in memory, would give nothing back."""


class Device(Protocol):
    """A way to save the memory of a kind of device, and to bring it back."""

    def save(self, storages: Sequence[UntypedStorage]) -> None:
        """Copy the bytes of all storages. Raises OSError."""
        ...

    def empty(self, storage: UntypedStorage) -> int:
        """Give the memory of a storage back; return its size in bytes."""
        ...

    def fill(self, storage: UntypedStorage, size: int) -> None:
        """Get the memory of a storage again, with undefined values. size: result of `empty`."""
        ...

    def load(self, storages: Sequence[UntypedStorage]) -> None:
        """Write the copied bytes to all storages. Raises OSError."""
        ...


class OnDisk:
    """The memory of a CPU rests on disk. The system writes the file out and drops its pages from memory."""

    def save(self, storages: Sequence[UntypedStorage]) -> None:
        self._file = tempfile.TemporaryFile(dir=DISK if os.path.isdir(DISK) else None)  # noqa: SIM115  # closed by `load`
        for storage in storages:
            self._file.write(_flat(storage).numpy().data)
        self._file.flush()
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def empty(self, storage: UntypedStorage) -> int:
        begin = storage.data_ptr() + -storage.data_ptr() % mmap.PAGESIZE
        end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
        if end <= begin or _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED):
            return 0  # no whole page, or pages that are locked in memory
        return end - begin

    def fill(self, storage: UntypedStorage, size: int) -> None:
        """Do nothing: a page comes back when it is used."""

    def load(self, storages: Sequence[UntypedStorage]) -> None:
        with self._file as file:
            file.seek(0)
            for storage in storages:
                if file.readinto(_flat(storage).numpy().data) != storage.nbytes():
                    raise OSError("the copy of resting memory has lost a part")


class OnHost:
    """The memory of a GPU rests in the host's memory, which is pinned, so that copies run at the bus speed."""

    def __init__(self) -> None:
        self._host: list[Tensor] = []

    def save(self, storages: Sequence[UntypedStorage]) -> None:
        parts = [_flat(storage) for storage in storages]
        if [host.shape for host in self._host] != [part.shape for part in parts]:
            self._host = [torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda) for part in parts]
        for part, host in zip(parts, self._host, strict=True):
            host.copy_(part, non_blocking=True)
        _settle(parts)

    def empty(self, storage: UntypedStorage) -> int:
        size = storage.nbytes()
        storage.resize_(0)
        return size

    def fill(self, storage: UntypedStorage, size: int) -> None:
        storage.resize_(size)

    def load(self, storages: Sequence[UntypedStorage]) -> None:
        parts = [_flat(storage) for storage in storages]
        for part, host in zip(parts, self._host, strict=True):
            part.copy_(host, non_blocking=True)
        _settle(parts)


class RestingMemory:
    """The memory of a process that gives it back and gets it again."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[UntypedStorage] | None = None
        self._emptied: list[tuple[UntypedStorage, int]] = []

    @classmethod
    def of(cls, device: torch.device) -> RestingMemory:
        """Return the memory of tensors on a device."""
        return cls(OnHost() if device.type == "cuda" else OnDisk())

    @property
    def is_resting(self) -> bool:
        return self._kept is not None

    def rest(self, kept: Iterable[Tensor], dropped: Iterable[Tensor] = ()) -> int:
        """Give the memory of tensors back; return its size in bytes. While it rests, do nothing and return 0.

        kept: tensors that need the same bytes again. dropped: tensors that may come back with any values. Raises
        OSError if there is no room for the copies; nothing has changed then.
        """
        if self.is_resting:
            return 0
        needed, undefined = _storages(kept), _storages(dropped)
        every = needed | undefined
        self._device.save([*needed.values()])
        self._kept = [*needed.values()]
        self._emptied = [(storage, self._device.empty(storage)) for storage in every.values()]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return sum(size for _, size in self._emptied)

    def wake(self) -> None:
        """Bring the memory back. While it does not rest, do nothing. Raises OSError; the tensors are lost then."""
        if self._kept is None:
            return
        for storage, size in self._emptied:
            self._device.fill(storage, size)
        self._device.load(self._kept)
        self._kept, self._emptied = None, []


def discard(tensors: Iterable[Tensor]) -> int:
    """Give the memory of tensors on the CPU back with their values; return its size in bytes.

    It comes back when the tensors are written, which may be at any time.
    """
    return sum(map(OnDisk().empty, _storages(tensors).values()))


_libc = ctypes.CDLL(None)


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """Return the storages that have memory, each once, by address."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage for storage in storages if storage.nbytes()}


def _flat(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _settle(parts: Sequence[Tensor]) -> None:
    """Wait until all copies are done."""
    if any(part.is_cuda for part in parts[:1]):
        torch.cuda.synchronize()
