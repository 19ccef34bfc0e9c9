"""The batch of a step that a client commands: sealed from its commands, and built again from them. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.commands import CommandGiven, CommandKind
from schemas.errors import InvalidValue, StorageError
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.datums import LOSSES, AdamParams, Beginning, CommandedStep, TrainPass, unpack_datums
from slime_events.core.training.train_batch import TrainBatch

BEGINS = (CommandKind.CREATE_MODEL, CommandKind.LOAD_WEIGHTS)
OF_BATCHES = (CommandKind.FORWARD_BACKWARD, CommandKind.OPTIM_STEP, *BEGINS)
"""Kinds of commands that a step may consist of."""


def sealed_commands(step: int, commands: Sequence[CommandGiven]) -> BatchSealed:
    """Return the sealed batch of these commands. The last command makes the step."""
    return BatchSealed(
        step=step,
        groups=(),
        samples=(),
        rewards=(),
        raw_rewards=(),
        digest=commands_digest(step, commands),
        oldest_version=step,
        commands=tuple(command.command for command in commands),
    )


def commands_digest(step: int, commands: Sequence[CommandGiven]) -> str:
    """Return sha256 over the step and a line (command, digest of its content) per command, in order; hex."""
    lines = [str(step), *(f"{command.command} {command.digest()}" for command in commands)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def commanded_batch(sealed: BatchSealed, commands: Mapping[str, CommandGiven], fetch: Fetch) -> TrainBatch:
    """Return the batch that `sealed` names. Raises StorageError if the log does not have exactly what was sealed."""
    missing = [name for name in sealed.commands if name not in commands]
    if missing:
        raise StorageError(f"step {sealed.step} names command {missing[0]}, but the log does not have it")
    sequence = [commands[name] for name in sealed.commands]
    if commands_digest(sealed.step, sequence) != sealed.digest:
        raise StorageError(f"step {sealed.step}: the log's commands do not have the digest that was sealed")
    passes, last = tuple(train_pass(command, fetch) for command in sequence[:-1]), sequence[-1].arguments
    if sequence[-1].kind in BEGINS:
        update: AdamParams | Beginning = Beginning(last.get("version"), bool(last.get("optimizer")))
    else:
        update = adam_params(last)
    return TrainBatch(sealed.step, (), commanded=CommandedStep(passes, update))


def train_pass(command: CommandGiven, fetch: Fetch) -> TrainPass:
    """Return the pass of a forward or forward_backward command, for the ranks."""
    loss, config = command.arguments["loss_fn"], command.arguments["config"]
    return TrainPass(command.digest(), loss, {**LOSSES[loss].config, **config}, unpack_datums(fetch(command.datums)))


def adam_params(arguments: Mapping[str, Any]) -> AdamParams:
    """Return the parameters of an optim_step. Raises InvalidValue."""
    try:
        params = msgspec.convert(arguments["adam_params"], AdamParams)
    except (msgspec.ValidationError, KeyError) as error:
        raise InvalidValue(f"adam_params: {error}") from error
    params.check()
    return params
