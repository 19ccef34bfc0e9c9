"""The delta of an Adam step at learning rate 1e-6: its size, and the speed of encoding and applying on one core.

A bf16 tensor is the copy of float32 weights that Adam trains on noise. The first steps after a start are larger than
the later ones, because the moments are fresh, so the figure is taken after `WARM_UP` steps; the note has an early step.
Both speeds include the checksum of the new bytes. A delta is applied to a copy of the old bytes, which exists before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.figure import Better, Figure
from storage.weights.delta import apply, checksum, encode
from storage.weights.delta_rule import DeltaChecksum, DeltaEncoding

ELEMENTS = 16 * 1024**2
RATE = 1e-6
BETAS = (0.9, 0.98)
"""Those of slime's scripts."""
SPREAD = 0.02
"""Standard deviation of the weights, as models are initialized."""
WARM_UP = 24
ROUNDS = 5


def measure() -> list[Figure]:
    """Return the size and the speeds for `xor`; the notes have `overwrite`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, second, *_, before, after = [each.view(torch.uint8).numpy().data for each in _versions()]
    finally:
        torch.set_num_threads(threads)
    kinds = {kind: _speeds(kind, before, after) for kind in DeltaEncoding}
    size, encoding, applying = kinds[DeltaEncoding.XOR]
    early = len(encode(DeltaEncoding.XOR, first, second)) / first.nbytes
    other, changed = kinds[DeltaEncoding.OVERWRITE], _changed(before, after)
    note = f"{before.nbytes / 1e6:.0f} MB of bf16, {changed:.1%} of the elements changed"
    return [
        Figure(
            name="delta of an Adam step at 1e-6 / full weights", value=size * 100, unit="%", target=3.0,
            better=Better.LOWER, note=f"xor; {note}; second step {early:.1%}; overwrite {other[0]:.1%}",
        ),
        Figure(
            name="encode a delta, one core", value=encoding, unit="GB/s", target=1.0,
            note=f"xor with checksum; overwrite {other[1]:.2f} GB/s",
        ),
        Figure(
            name="apply a delta, one core", value=applying, unit="GB/s", target=1.0,
            note=f"xor with checksum, in place; overwrite {other[2]:.2f} GB/s",
        ),
    ]  # fmt: skip


def _versions() -> Iterator[torch.Tensor]:
    """Yield the bf16 weights after the first two and the last two steps."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(ELEMENTS, generator=generator).mul_(SPREAD).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=RATE, betas=BETAS)
    for step in range(1, WARM_UP + 2):
        weights.grad = torch.randn(ELEMENTS, generator=generator)
        optimizer.step()
        if step in (1, 2, WARM_UP, WARM_UP + 1):
            yield weights.detach().bfloat16()


def _changed(before: memoryview, after: memoryview) -> float:
    words = [torch.frombuffer(bytearray(data), dtype=torch.int16) for data in (before, after)]
    return float((words[0] != words[1]).float().mean())


def _speeds(kind: DeltaEncoding, before: memoryview, after: memoryview) -> tuple[float, float, float]:
    """Return the size of the delta as a share, and the speeds of encoding and applying in GB/s."""
    frame, expected = encode(kind, before, after), checksum(DeltaChecksum.XXH3, after)

    def encoding() -> None:
        encode(kind, before, after)
        checksum(DeltaChecksum.XXH3, after)

    memory = bytearray(before)

    def copying() -> None:
        memory[:] = before

    def applying() -> None:
        apply(kind, memoryview(frame), memory)
        assert checksum(DeltaChecksum.XXH3, memory) == expected

    speeds = _speed(encoding, after.nbytes), _speed(applying, after.nbytes, copying)
    return len(frame) / after.nbytes, *speeds


def _speed(work: Callable[[], None], size: int, prepare: Callable[[], None] = lambda: None) -> float:
    """Return GB per second of CPU time, the best round: other work on the machine hardly changes it."""
    seconds = []
    for _ in range(ROUNDS):
        prepare()
        begun = time.thread_time()
        work()
        seconds.append(time.thread_time() - begun)
    return size / min(seconds) / 1e9
