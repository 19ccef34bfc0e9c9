"""`experts_of`: the experts of a generate function's sample, from the turns that it was made in."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from schemas.arrays import pack, unpack
from schemas.rollouts import RoutedExperts
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.generate.journal import EndedTurn


def experts_of(
    tokens: Tokens, turns: Sequence[tuple[Tokens | int, EndedTurn]], reported: Mapping[int, RoutedExperts]
) -> RoutedExperts | None:
    """Return the experts of the longest beginning of a sample that is also that of a turn's prompt and response.

    The experts of a token depend on it and the tokens before it alone. reported: by index of the turn.
    """
    best, longest = None, 0
    for prompt, turn in turns:
        experts = reported.get(turn.event.index)
        if experts is None or isinstance(prompt, int):
            continue
        whole = np.concatenate([prompt, turn.tokens])[: min(len(tokens), experts.tokens)]
        differ = np.nonzero(whole != tokens[: len(whole)])[0]
        same = int(differ[0]) if len(differ) else len(whole)
        if same and same >= longest:
            best, longest = experts, same
    if best is None:
        return None
    ids = unpack(best.ids)[: longest * best.layers * best.each]
    return msgspec.structs.replace(best, ids=pack(ids, best.ids.dtype))
