"""Sessions of agents as harnesses see them over HTTP."""

from typing import Annotated, Any

import msgspec

from schemas.doc import doc


class OpenedSession(msgspec.Struct, frozen=True):
    """A claimed rollout."""

    session: Annotated[str, doc("Name of the session.")]
    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample, from 0.")]
    purpose: Annotated[str, doc("`train` or `eval`.")]
    prompt: Annotated[str | list[dict[str, Any]], doc("Text or chat messages of the prompt.")]
    metadata: Annotated[Any, doc("The prompt's metadata.")]
    label: Annotated[Any, doc("The prompt's label.")]
    tools: Annotated[list[dict[str, Any]] | None, doc("The prompt's tool definitions.")]
    sampling: Annotated[dict[str, Any], doc("Sampling parameters, by SGLang's names.")]
    base_url: Annotated[str, doc("Base URL for an agent, with the agent's key in it.")]
    agent_key: Annotated[str, doc("The agent's key, for use as an API key.")]
    control_key: Annotated[str, doc("Key for the harness alone.")]
    limits: Annotated[dict[str, float], doc("Time limits in seconds, by name.")]


class ListedSession(msgspec.Struct, frozen=True):
    """A session that is open and not sealed."""

    session: Annotated[str, doc("Name of the session.")]
    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample, from 0.")]
    key: Annotated[str, doc("Idempotency-Key that opens the session again.")]
    control_key: Annotated[str, doc("Key for the harness alone.")]
    opened_at: Annotated[float, doc("When the session was opened, seconds of Unix time.")]
    idle_s: Annotated[float, doc("Seconds since its newest event.")]
    turns: Annotated[int, doc("Turns that have ended.")]
    under_way: Annotated[int, doc("Turns that have not ended.")]


class SessionList(msgspec.Struct, frozen=True):
    """A page of one source's open sessions, sorted by name."""

    sessions: Annotated[list[ListedSession], doc("Sessions of the page.")]
    next: Annotated[str, doc("Value of `after` for the next page; empty on the last page.")] = ""
    over: Annotated[bool, doc("The run has ended.")] = False
    interrupted: Annotated[bool, doc("Its user interrupted the run, and may resume it.")] = False
