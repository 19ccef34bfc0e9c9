"""The order of an epoch, by slime's rule: always a shuffle of the original order, never of the last epoch's."""

from __future__ import annotations

import functools
import random
from array import array

import numpy as np
import numpy.typing as npt


@functools.lru_cache(maxsize=2)
def epoch_order(rows: int, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """uint32 [rows]: the row that stands at each place of `epoch`.

    What `random.seed(seed + epoch)` and `random.shuffle` make of 0 .. rows - 1, in 4 bytes a row instead of 40.
    """
    order = array("I", range(rows))
    random.Random(seed + epoch).shuffle(order)
    view = np.frombuffer(order, dtype=np.uint32)
    view.flags.writeable = False
    return view
