"""`Recredit`: applies a different credit rule to the sessions of a parent's log. A fold of the log."""

from collections.abc import Sequence

import numpy as np

from schemas.batches import BatchColumn
from schemas.errors import InvalidValue
from schemas.ids import requested_sample
from schemas.rollouts import RolloutCompleted
from slime_events.algorithms.credit import CreditRule, SealedSessions
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.batch_columns import CREDIT, LOSS_MASKS, make_column


class Recredit:
    """Masks and credit of samples under a credit rule. fetch: for loss masks of samples that no session made."""

    def __init__(self, rule: CreditRule, fetch: Fetch) -> None:
        self._rule, self._fetch, self._sessions = rule, fetch, SealedSessions()
        self._completed: dict[str, RolloutCompleted] = {}

    def apply(self, event: object) -> None:
        """Fold the next event of a training group in."""
        self._sessions.apply(event)
        if isinstance(event, RolloutCompleted):
            self._completed[event.sample] = event

    def is_sample(self, name: str) -> bool:
        """Return whether the rule keeps a sample."""
        paths = self._sessions.paths(requested_sample(name), self._rule)
        return not paths or name in paths

    def check(self, group: Sequence[str]) -> None:
        """Raise InvalidValue if the rule makes samples of a group that the log does not have."""
        for requested in dict.fromkeys(map(requested_sample, group)):
            if missing := self._sessions.paths(requested, self._rule).keys() - set(group):
                raise InvalidValue(
                    f"the credit rule {self._rule} makes {len(missing)} more samples of the session of {requested}, "
                    f"and its run has none of them (agent-credit {self._sessions.seals[requested].credit})"
                )

    def columns(self, samples: Sequence[str]) -> tuple[BatchColumn, ...]:
        """Return columns that override the samples' own values; none if the rule is that of the samples' run."""
        seals = [self._sessions.seals.get(requested_sample(name)) for name in samples]
        if all(seal is None or CreditRule.of(seal) == self._rule for seal in seals):
            return ()
        masks, credits = zip(*map(self._trained, samples), strict=True)
        columns = [make_column(LOSS_MASKS, masks)]
        if any((credit != 1.0).any() for credit in credits) or any(seal and seal.discount != 1.0 for seal in seals):
            columns.append(make_column(CREDIT, credits))
        return tuple(columns)

    def _trained(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return loss mask and credit of a sample, [response] each."""
        requested, done = requested_sample(name), self._completed[name]
        if (path := self._sessions.paths(requested, self._rule).get(name)) is not None:
            turns = self._sessions.tokens(requested)
            mask, credit = path.mask(turns), path.credit(turns)
        else:
            mask = np.ones(done.length, np.int8) if done.loss_mask is None else self._fetch(done.loss_mask)
            credit = None if done.credit is None else self._fetch(done.credit)
        return mask, np.ones(done.length, np.float32) if credit is None else credit

    def forget(self, samples: Sequence[str]) -> None:
        """Release samples after their last use."""
        for name in samples:
            self._completed.pop(name, None)
            self._sessions.forget(requested_sample(name))
