"""`AgentSetup`: settings, model parts and storage for a gateway of a run whose rollouts come from agents."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from schemas.doc import doc
from schemas.errors import ConfigError
from schemas.event import Event
from schemas.turns import AgentTurn
from serve_apps.engines.limits import NO_LIMITS, EngineLimits
from serve_apps.rollouts.agents.bridge import Bridge
from serve_apps.rollouts.agents.parsing import Parsers, parser_names
from serve_apps.rollouts.agents.rendering import ChatTokenizer
from slime_events.algorithms.credit import CreditRule
from slime_events.core.checkpoint.context import LONG_CONTEXT, context_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.sessions.session import Limits
from slime_events.core.telemetry.telemetry import NO_TRACING, Tracing
from slime_events.core.tokens.trajectory import Fetch
from slime_events.plugins.tokenizer import load_tokenizer
from storage.blobs import BlobStore
from storage.payloads import fetch, offload_async

BODY_LIMIT = 8 * 1024
"""Bytes of a request above which its body becomes a blob. Readers of turns do not need the body, which repeats all
earlier messages of the session.
"""

BYTES_OF_A_TOKEN = 32
"""Most bytes of a request's body for each token. In most texts a token has 4 bytes, or 12 if JSON escapes each
character; a token of white space may have a few dozen."""
BYTES_BESIDE = 1024 * 1024
"""Most bytes of a request's body that become no tokens: fields, ids, log-probs of earlier answers."""


@dataclass(frozen=True, slots=True)
class AgentRules:
    """Settings of the run that apply to agents."""

    credit: CreditRule
    limits: Limits
    context: Annotated[int | None, doc("limit of prompt and answer [tokens]; None: only the engine limits them")]
    seed: Annotated[int, doc("seed of the run")]
    attempts: Annotated[int, doc("most attempts of one generation")]
    tokens_in_flight: Annotated[int, doc("limit for all turns in progress at one gateway [tokens]")]
    turns_per_minute: Annotated[int, doc("limit of a session's requests at one gateway, each minute")]
    grades: Annotated[bool, doc("the run has a grader for every rollout")]
    engines: Annotated[int, doc("number of the run's engines")] = 1
    room: Annotated[int | None, doc("context of the model [tokens], if known; far longer prompts are not read")] = None
    fails_idle: Annotated[bool, doc("an idle session becomes a failed rollout")] = False

    @property
    def longest(self) -> int:
        """Limit of a prompt in tokens, and of the number of its messages: each has at least one token."""
        return self.room or self.context or LONG_CONTEXT

    @property
    def most_bytes(self) -> int:
        """Limit of a request in bytes. A longer one cannot fit in the context, and is refused before it is read."""
        return BYTES_BESIDE + BYTES_OF_A_TOKEN * self.longest


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """Rules, model parts and storage functions for the agents of a run."""

    rules: AgentRules
    tokenizer: ChatTokenizer
    bridge: Bridge
    parsers: Parsers
    fetch: Annotated[Fetch, doc("loads an array, from the blob store if it is large")]
    offload: Annotated[Callable[[Event], Awaitable[Event]], doc("moves an event's large arrays to the blob store")]
    keep: Annotated[
        Callable[[AgentTurn], Awaitable[AgentTurn]],
        doc("moves the body of a request to the blob store, if it is large"),
    ]
    engine: Annotated[EngineLimits, doc("limits of the engines that the gateway checks itself")] = NO_LIMITS
    tracing: Annotated[Tracing, doc("export of the spans of turns and sessions")] = NO_TRACING


def agent_rules(settings: TrainSettings) -> AgentRules:
    """Return the rules of a run. Raises ConfigError if its rollouts do not come from agents."""
    if not settings.rollout.agents:
        raise ConfigError(f"run {settings.run.run} was started without --agents, so it has no sessions for agents")
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
    """Load the tokenizer of the run's checkpoint. Raises ConfigError, InvalidValue, MissingPart."""
    rules, blobs = agent_rules(settings), BlobStore(blob_url)
    folder = settings.engine.hf_checkpoint
    tokenizer = cast(ChatTokenizer, await asyncio.to_thread(load_tokenizer, folder))
    return AgentSetup(
        rules,
        tokenizer,
        Bridge(tokenizer, settings.data.apply_chat_template_kwargs, rules.longest),
        Parsers(parser_names(settings.engine), tokenizer, Path(folder)),
        partial(fetch, blobs=blobs),
        partial(offload_async, blobs=blobs),
        partial(offload_async, blobs=blobs, limit=BODY_LIMIT),
        EngineLimits.of(settings.engine),
        Tracing(settings.run.otlp_endpoint, settings.run.trace_share),
    )
