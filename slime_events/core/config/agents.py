"""Sessions of agents: how long they may take, and what of them is trained on."""

from typing import Annotated, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc


class AgentSettings(Settings, frozen=True, kw_only=True):
    """A session is a rollout of a run with --agents that a program outside makes, turn by turn."""

    agent_credit: Annotated[
        Literal["all", "last", "leaf", "discounted"],
        doc(
            "tokens of a session that are trained on: all of its paths, each once; the last turn of each path; only "
            "the path that ended last; or as all, the advantage of a turn discounted from the last one of its path"
        ),
    ] = "all"
    agent_turn_discount: Annotated[
        float, doc("with agent-credit discounted: what each turn counts of the one after it, 1 at most", above=0)
    ] = 0.9
    agent_turn_seconds: Annotated[float, doc("seconds that one turn may take", above=0)] = 600.0
    agent_session_seconds: Annotated[float, doc("seconds that a session may take before it is sealed", above=0)] = (
        3600.0
    )
    agent_idle_seconds: Annotated[float, doc("seconds without a turn before a session is sealed", above=0)] = 300.0
    agent_idle: Annotated[
        Literal["grade", "fail"],
        doc(
            "what comes of an idle session: grade it with the turns that it has, or fail its rollout, which is asked "
            "for again up to max-attempts"
        ),
    ] = "grade"
    agent_command: Annotated[
        str | None,
        doc(
            "program that makes a rollout: started for each that waits for an agent, with a session's URL and key in "
            "its environment and the task as JSON on its input; without a shell"
        ),
    ] = None
    agent_env: Annotated[
        list[str], doc("variables that programs of agent-command see although they look like secrets")
    ] = field(default_factory=list)
    agent_concurrency: Annotated[int, doc("programs of agent-command at once", above=0)] = 8
    agent_timeout: Annotated[float, doc("seconds that a program of agent-command may take", above=0)] = 600.0
    agent_tokens_in_flight: Annotated[
        int, doc("prompt and response tokens of the turns under way; more are asked to come again", above=0)
    ] = 4_000_000
    agent_turns_per_minute: Annotated[
        int, doc("requests of one session in a minute; more are asked to come again", above=0)
    ] = 6000
