"""`AgentSetup`: what a gateway knows of a run whose rollouts agents make."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from schemas.event import Event
from schemas.turns import AgentTurn
from serve_apps.agents.bridge import Bridge
from serve_apps.agents.parsing import Parsers, parser_names
from serve_apps.engine.limits import NO_LIMITS, EngineLimits
from slime_events.core.config.settings import TrainSettings
from slime_events.core.context import LONG_CONTEXT, context_of
from slime_events.core.credit import CreditRule
from slime_events.core.state.sessions import Limits
from slime_events.core.trajectory import Fetch
from slime_events.plugins.tokenizer import load_tokenizer
from storage.blobs import BlobStore
from storage.payloads import fetch, offload_async

BODY_LIMIT = 8 * 1024
"""Bytes of a request above which its body is a blob: each of a session's has all messages before it, and whoever reads
its turns does not need them.
"""


BYTES_OF_A_TOKEN = 32
"""Of a request's body, at most. Of most texts a token has 4 bytes, and 12 where JSON escapes each character; of white
space it may have some dozens."""
BYTES_BESIDE = 1024 * 1024
"""Of a request's body that become no tokens: fields, ids, log-probs that an answer brought."""


@dataclass(frozen=True, slots=True)
class AgentRules:
    """From the run's settings. context: tokens of prompt and answer; None where the engine alone limits them. seed: of
    the run. attempts: of one generation. tokens_in_flight: of the turns under way at one gateway. turns_per_minute: of
    a session there. grades: the run has a grader for every rollout. engines: of the run. room: tokens that its model
    has room for, where that is known: what is by far longer is not read. fails_idle: an idle session is a failed
    rollout.
    """

    credit: CreditRule
    limits: Limits
    context: int | None
    seed: int
    attempts: int
    tokens_in_flight: int
    turns_per_minute: int
    grades: bool
    engines: int = 1
    room: int | None = None
    fails_idle: bool = False

    @property
    def longest(self) -> int:
        """Tokens of a prompt, at most. No request has more messages: each has a token at least."""
        return self.room or self.context or LONG_CONTEXT

    @property
    def most_bytes(self) -> int:
        """Of a request: a longer one cannot be within the context, and is refused before anything is done with it."""
        return BYTES_BESIDE + BYTES_OF_A_TOKEN * self.longest


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """bridge, parsers, tokenizer: of the run's model. engine: what its engines are not asked. fetch, offload: large
    arrays from the blob store, and into it.
    keep: the body of a request into it, unless it is small.
    """

    rules: AgentRules
    tokenizer: Any
    bridge: Bridge
    parsers: Parsers
    fetch: Fetch
    offload: Callable[[Event], Awaitable[Event]]
    keep: Callable[[AgentTurn], Awaitable[AgentTurn]]
    engine: EngineLimits = NO_LIMITS


def agent_rules(settings: TrainSettings) -> AgentRules:
    """Raises ConfigError where the run's rollouts are made otherwise."""
    if not settings.rollout.agents:
        raise ConfigError(f"run {settings.run.run} has no --agents: its engines make its rollouts")
    agents, rollout, reward = settings.agents, settings.rollout, settings.reward
    return AgentRules(
        credit=CreditRule.of_settings(agents),
        limits=Limits(agents.agent_turn_seconds, agents.agent_session_seconds, agents.agent_idle_seconds),
        context=rollout.rollout_max_context_len,
        seed=rollout.rollout_seed,
        attempts=rollout.max_attempts,
        tokens_in_flight=agents.agent_tokens_in_flight,
        turns_per_minute=agents.agent_turns_per_minute,
        grades=bool(reward.rm_type or reward.custom_rm_path),
        engines=settings.engine.replicas,
        room=context_of(settings),
        fails_idle=agents.agent_idle == "fail",
    )


async def agent_setup(settings: TrainSettings, blob_url: str) -> AgentSetup:
    """With the tokenizer of the run's checkpoint. Raises ConfigError, InvalidValue, MissingPart."""
    rules, blobs = agent_rules(settings), BlobStore(blob_url)
    folder = settings.engine.hf_checkpoint
    tokenizer = await asyncio.to_thread(load_tokenizer, folder)
    return AgentSetup(
        rules,
        tokenizer,
        Bridge(tokenizer, settings.data.apply_chat_template_kwargs, rules.longest),
        Parsers(parser_names(settings.engine), tokenizer, Path(folder)),
        partial(fetch, blobs=blobs),
        partial(offload_async, blobs=blobs),
        partial(offload_async, blobs=blobs, limit=BODY_LIMIT),
        EngineLimits.of(settings.engine),
    )
