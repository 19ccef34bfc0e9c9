"""Settings of agents' sessions: their limits, and the tokens to train on."""

from typing import Annotated, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, excludes, needs, unused_without


class AgentSettings(Settings, frozen=True, kw_only=True):
    """Sessions in a run with `agents`: an external program makes a rollout turn by turn."""

    agent_credit: Annotated[
        Literal["all", "last", "leaf", "discounted"],
        doc(
            "tokens of a session to train on; all: each path once; last: the last turn of each path; leaf: the path "
            "that ended last; discounted: as all, with a turn's advantage discounted from the last turn of its path",
            excludes(
                "advantage_estimator:needs_values", why="its critic learns the value of each turn", value="discounted"
            ),
            excludes(
                "custom_advantage_function_path",
                "rollout_data_postprocess_path",
                why="the function may set the advantages itself",
                value="discounted",
            ),
            unused_without("agents"),
            also=Later.RESCORE,
        ),
    ] = "all"
    agent_turn_discount: Annotated[
        float,
        doc(
            "with agent-credit discounted: weight of a turn relative to the next turn, at most 1",
            unused_without("agents"),
            unused_without("agent_credit=discounted"),
            above=0,
            most=1,
            also=Later.RESCORE,
        ),
    ] = 0.9
    agent_turn_seconds: Annotated[float, doc("time limit of a turn, in seconds", unused_without("agents"), above=0)] = (
        600.0
    )
    agent_session_seconds: Annotated[
        float, doc("seconds after which a session is sealed", unused_without("agents"), above=0)
    ] = 3600.0
    agent_idle_seconds: Annotated[
        float, doc("seconds without a turn after which a session is sealed", unused_without("agents"), above=0)
    ] = 300.0
    agent_idle: Annotated[
        Literal["grade", "fail"],
        doc(
            "what to do with an idle session; grade: grade its turns so far; fail: fail its rollout, which "
            "is requested "
            "again up to max-attempts times",
            unused_without("agents"),
        ),
    ] = "grade"
    agent_command: Annotated[
        str | None,
        doc(
            "program to start, without a shell, for each rollout that waits for an agent; its environment has the URL "
            "and key of a session, and its standard input the task as JSON",
            needs("agents", why="its programs make rollouts"),
            needs("gateway", why="its programs reach the run through the run's own gateway"),
            also=Later.RESUME,
        ),
    ] = None
    agent_env: Annotated[
        list[str],
        doc(
            "variables to pass to programs of agent-command although their names look like secrets",
            unused_without("agent_command"),
            also=Later.RESUME,
        ),
    ] = field(default_factory=list)
    agent_concurrency: Annotated[
        int,
        doc("most programs of agent-command at a time", unused_without("agent_command"), above=0, also=Later.RESUME),
    ] = 8
    agent_timeout: Annotated[
        float,
        doc(
            "time limit of a program of agent-command, in seconds",
            unused_without("agent_command"),
            above=0,
            also=Later.RESUME,
        ),
    ] = 600.0
    agent_tokens_in_flight: Annotated[
        int,
        doc(
            "most prompt and response tokens of turns in progress; further turns are refused until there is room",
            unused_without("agents"),
            above=0,
        ),
    ] = 4_000_000
    agent_turns_per_minute: Annotated[
        int,
        doc(
            "most requests of a session per minute; further ones are refused until the next minute",
            unused_without("agents"),
            above=0,
        ),
    ] = 6000
