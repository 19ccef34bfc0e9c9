"""`FileRun`: consecutive bytes of a file. A box of a stored tensor, such as a rank's rows, is a few such runs."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import CheckpointMismatch

BUFFER_BYTES = 1024**2
"""Size of the buffer for copies. The kernel's own copies (sendfile, copy_file_range) go page by page, and take half as
long again as reads and writes of this size.
"""


class FileRun(NamedTuple):
    """Consecutive bytes of a file."""

    path: Path
    start: int
    length: int


class Box(NamedTuple):
    """A rectangular part of a tensor: the elements from `begin` to before `end` on each axis."""

    begin: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements on each axis."""
        return tuple(end - begin for begin, end in zip(self.begin, self.end, strict=True))

    def clipped(self, axis: int, begin: int, end: int) -> Box:
        """Return the part between two positions on an axis."""
        begins, ends = list(self.begin), list(self.end)
        begins[axis], ends[axis] = max(begins[axis], begin), min(ends[axis], end)
        return Box(tuple(begins), tuple(ends))

    def moved(self, axis: int, distance: int) -> Box:
        """Return the box at another position on an axis."""
        begins, ends = list(self.begin), list(self.end)
        begins[axis], ends[axis] = begins[axis] + distance, ends[axis] + distance
        return Box(tuple(begins), tuple(ends))

    def strips(self, axis: int) -> Iterator[Box]:
        """Yield the parts that have one element on each axis before `axis`, in row-major order."""
        for place in itertools.product(*map(range, self.begin[:axis], self.end[:axis])):
            yield Box((*place, *self.begin[axis:]), (*(at + 1 for at in place), *self.end[axis:]))

    def common(self, other: Box) -> Box | None:
        """Return what two boxes have in common; None for nothing."""
        box = Box(tuple(map(max, self.begin, other.begin)), tuple(map(min, self.end, other.end)))
        return box if all(begin < end for begin, end in zip(*box, strict=True)) else None


class Block(NamedTuple):
    """A part of a tensor that is in one file."""

    box: Annotated[Box, doc("The part.")]
    path: Path
    start: Annotated[int, doc("Position of its first element in the file.")]
    strides: Annotated[tuple[int, ...], doc("Elements in the file from one element to the next, on each axis.")]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(itertools.accumulate(reversed(shape[1:]), int.__mul__, initial=1))[::-1] if shape else ()


def runs_of(blocks: Iterable[Block], box: Box, item_bytes: int, what: object) -> list[FileRun]:
    """Return the runs of the elements of a box, in row-major order.

    Raises CheckpointMismatch if the blocks do not have each element of the box exactly once. what: names the tensor.
    """
    to = row_major(box.shape)
    pieces = sorted(piece for block in blocks for piece in _pieces(block, box, to, item_bytes))
    runs, at = list[FileRun](), 0
    for position, run in pieces:
        if position != at:
            break
        at += run.length
        last = runs[-1] if runs else None
        if last is not None and last.path == run.path and last.start + last.length == run.start:
            runs[-1] = last._replace(length=last.length + run.length)
        else:
            runs.append(run)
    expected = item_bytes
    for length in box.shape:
        expected *= length
    if at != expected or at != sum(run.length for _, run in pieces):
        raise CheckpointMismatch(f"{what} is incomplete: restore the folder from a copy")
    return runs


def _pieces(block: Block, box: Box, to: Sequence[int], item_bytes: int) -> Iterator[tuple[int, FileRun]]:
    """Yield runs with the position of each in the bytes of the box. to: the strides of the box."""
    common = block.box.common(box)
    if common is None:
        return
    length, outer = 1, len(to)
    for axis in reversed(range(len(to))):
        count = common.end[axis] - common.begin[axis]
        if count > 1 and (block.strides[axis] != length or to[axis] != length):
            break
        length, outer = length * count, axis
    ranges = (range(*ends) for ends in zip(common.begin[:outer], common.end[:outer], strict=True))
    for place in itertools.product(*ranges):
        at = (*place, *common.begin[outer:])
        there = sum((i - first) * step for i, first, step in zip(at, block.box.begin, block.strides, strict=True))
        here = sum((i - first) * step for i, first, step in zip(at, box.begin, to, strict=True))
        yield here * item_bytes, FileRun(block.path, block.start + there * item_bytes, length * item_bytes)


class RunReader:
    """Reads runs of files, of which the one that was last read is open, and counts the bytes."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self.bytes_read = 0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._file: io.FileIO | None = None
        self._path: Path | None = None

    def fill(self, memory: memoryview, runs: Iterable[FileRun]) -> None:
        """Read runs, one after the other, into memory of their size. Raises CheckpointMismatch if a file is cut."""
        at = 0
        for run in runs:
            self._read(run.path, run.start, memory[at : at + run.length])
            at += run.length

    def copy(self, runs: Iterable[FileRun], file: io.FileIO) -> None:
        """Append runs to a file. Raises as `fill`; OSError if the file cannot be written."""
        buffer, held = self._buffer, 0
        for path, start, length in runs:
            done = 0
            while done < length:
                size = min(length - done, BUFFER_BYTES - held)
                self._read(path, start + done, buffer[held : held + size])
                held, done = held + size, done + size
                if held == BUFFER_BYTES:
                    write_all(file, buffer)
                    held = 0
        write_all(file, buffer[:held])

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def _opened(self, path: Path) -> int:
        if self._file is None or self._path != path:
            self.close()
            try:
                self._file, self._path = io.FileIO(path), path
            except OSError as error:
                raise _unreadable(path, error) from error
        return self._file.fileno()

    def _read(self, path: Path, start: int, memory: memoryview) -> None:
        descriptor, done = self._opened(path), 0
        while done < len(memory):
            try:
                count = os.preadv(descriptor, [memory[done:]], start + done)
            except OSError as error:
                raise _unreadable(path, error) from error
            if not count:
                raise _cut(path, start + done)
            done += count
        self.bytes_read += done


def write_all(file: io.FileIO, data: memoryview) -> None:
    """Write all bytes. Raises OSError."""
    done = 0
    while done < len(data):
        done += file.write(data[done:]) or 0


def _unreadable(path: Path, error: OSError) -> CheckpointMismatch:
    return CheckpointMismatch(f"{path} cannot be read: {error}; restore it from a copy")


def _cut(path: Path, at: int) -> CheckpointMismatch:
    return CheckpointMismatch(f"{path} ends at byte {at}: restore it from a copy")
