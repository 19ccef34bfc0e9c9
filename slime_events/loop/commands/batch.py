"""The batch of a step that a client made: sealed by its commands, and made of them again. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.commands import CommandGiven, CommandKind
from schemas.errors import InvalidValue, StorageError
from slime_events.core.datums import LOSSES, AdamParams, Beginning, CommandedStep, TrainPass, unpack_datums
from slime_events.core.train_batch import TrainBatch
from slime_events.core.trajectory import Fetch

BEGINS = (CommandKind.CREATE_MODEL, CommandKind.LOAD_WEIGHTS)
OF_BATCHES = (CommandKind.FORWARD_BACKWARD, CommandKind.OPTIM_STEP, *BEGINS)
"""Commands that a step may be made of."""


def sealed_commands(step: int, commands: Sequence[CommandGiven]) -> BatchSealed:
    """The batch of these commands, the last of them the one that makes the step."""
    return BatchSealed(
        step=step,
        groups=(),
        samples=(),
        rewards=(),
        raw_rewards=(),
        digest=commands_digest(step, commands),
        oldest_version=step,
        commands=tuple(one.command for one in commands),
    )


def commands_digest(step: int, commands: Sequence[CommandGiven]) -> str:
    """sha256 over the step and a line (command, digest of what it asks) per command, in order; hex."""
    lines = [str(step), *(f"{one.command} {one.digest()}" for one in commands)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def commanded_batch(sealed: BatchSealed, commands: Mapping[str, CommandGiven], fetch: Fetch) -> TrainBatch:
    """The batch that `sealed` names. Raises StorageError where the log does not hold exactly what was sealed."""
    missing = [name for name in sealed.commands if name not in commands]
    if missing:
        raise StorageError(f"step {sealed.step} names command {missing[0]}, which the log does not hold")
    given = [commands[name] for name in sealed.commands]
    if commands_digest(sealed.step, given) != sealed.digest:
        raise StorageError(f"step {sealed.step}: the log's commands do not have the digest that was sealed")
    passes, last = tuple(train_pass(one, fetch) for one in given[:-1]), given[-1].arguments
    if given[-1].kind in BEGINS:
        update: AdamParams | Beginning = Beginning(last.get("version"), bool(last.get("optimizer")))
    else:
        update = adam_params(last)
    return TrainBatch(sealed.step, (), commanded=CommandedStep(passes, update))


def train_pass(command: CommandGiven, fetch: Fetch) -> TrainPass:
    """A forward or forward_backward as the ranks take it."""
    loss, config = command.arguments["loss_fn"], command.arguments["config"]
    return TrainPass(command.digest(), loss, {**LOSSES[loss].config, **config}, unpack_datums(fetch(command.datums)))


def adam_params(arguments: Mapping[str, Any]) -> AdamParams:
    """Of an optim_step. Raises InvalidValue."""
    try:
        params = msgspec.convert(arguments["adam_params"], AdamParams)
    except (msgspec.ValidationError, KeyError) as error:
        raise InvalidValue(f"adam_params: {error}") from error
    params.check()
    return params
