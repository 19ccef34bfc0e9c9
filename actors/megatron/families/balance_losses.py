"""`BalanceLosses`: the auxiliary losses of routers, and their coefficients."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.errors import InvalidValue

logger = logging.getLogger(__name__)

KIND, COEFFICIENT, Z_COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"
"""Megatron's settings of the losses."""
DEFAULT_KIND, NO_KIND = "aux_loss", "none"
KINDS = {DEFAULT_KIND: "step", "seq_aux_loss": "sequence", "global_aux_loss": "step"}
"""The unit of each of Megatron's kinds. For Megatron, that of `aux_loss` is a micro batch, which depends on how samples
are packed and on the ranks; here it is the optimizer step.
"""


@dataclass(frozen=True, slots=True)
class BalanceLosses:
    """Coefficients of a router's losses; 0 without. Each layer of experts adds its own losses.

    The balance of a unit of T tokens with E experts, of which K process a token, is E * sum over experts of f * P
    (arXiv:2101.03961, for K experts as in arXiv:2412.19437). f: share of the unit's T * K choices that are this expert,
    if each token chose the K with the highest scores. P: mean score of the expert over the unit's tokens. Scores are
    the softmax of the router's logits; or their sigmoid, divided by the sum over the experts.
    """

    sequence: Annotated[float, doc("The mean balance of the sequences of an optimizer step.")] = 0.0
    step: Annotated[float, doc("The balance of all tokens of an optimizer step (arXiv:2501.11873).")] = 0.0
    z: Annotated[
        float, doc("The mean over a step's tokens of log(sum(exp(logits)))^2 of the router (arXiv:2202.08906).")
    ] = 0.0

    @classmethod
    def of(cls, flags: Mapping[str, object]) -> BalanceLosses:
        """Return the losses that Megatron's settings ask for. Raises InvalidValue."""
        kinds = [str(kind) for kind in _listed(flags.get(KIND) or DEFAULT_KIND)]
        values = _listed(flags.get(COEFFICIENT) or 0.0)
        unknown = [kind for kind in kinds if kind not in (*KINDS, NO_KIND)]
        if unknown:
            reason = "one of " + ", ".join((*KINDS, NO_KIND))
            if "sinkhorn" in unknown:
                reason = "its experts depend on the other tokens of a micro batch, and log-probs would not be exact"
            raise InvalidValue(f"--moe-router-load-balancing-type {unknown[0]}: {reason}")
        if len(kinds) != len(values) or len(set(kinds)) != len(kinds):
            raise InvalidValue(
                f"--moe-aux-loss-coeff has {len(values)} values for {len(kinds)} of --moe-router-load-balancing-type: "
                "give one for each, and each type once"
            )
        coefficients = {"sequence": 0.0, "step": 0.0}
        for kind, value in zip(kinds, values, strict=True):
            coefficient = _checked(COEFFICIENT, value)
            if kind != NO_KIND:
                coefficients[KINDS[kind]] += coefficient
            elif coefficient:
                logger.warning("--moe-aux-loss-coeff %s has no effect: --moe-router-load-balancing-type is none", value)
        if coefficients["step"] and DEFAULT_KIND in kinds:
            logger.warning("aux_loss balances the tokens of an optimizer step, not those of a micro batch")
        return cls(**coefficients, z=_checked(Z_COEFFICIENT, flags.get(Z_COEFFICIENT) or 0.0))

    def __bool__(self) -> bool:
        """Return whether there is any loss."""
        return any((self.sequence, self.step, self.z))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _checked(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidValue(f"--{name.replace('_', '-')} {value}: it takes a number from 0 on")
    return float(value)
