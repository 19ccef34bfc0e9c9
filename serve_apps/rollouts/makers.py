"""The registry of makers: who answers `rollout.requested`, by the request's `maker`.

A new maker is a member of `schemas.rollouts.Maker`, a file with its `Answerer`, and a line in `ANSWERERS`.
"""

from collections.abc import Mapping

from schemas.rollouts import Maker
from serve_apps.rollouts.answerer import Answerer, MakeAnswerer, MakerSetup
from serve_apps.rollouts.engine_answerer import EngineAnswerer

ANSWERERS: dict[Maker, MakeAnswerer] = {
    Maker.ENGINE: EngineAnswerer,
}
"""Makers whose requests rollout workers take from the log, competing with each other."""

ELSEWHERE: dict[Maker, str] = {
    Maker.FUNCTION: "serve_apps/rollouts/rollout_function/runner.py",  # appends the request with its answer
    Maker.AGENT: "serve_apps/rollouts/agents/sessions.py",  # opens a session for the request
    Maker.RECORDED: "actors/recorded_rollout_reader.py",  # in the conductor's process
    Maker.OUTSIDE: "actors/offered_rollouts.py",  # in the conductor's process
}
"""Files that answer the requests of the other makers. Workers leave these requests alone."""


def make_answerers(setup: MakerSetup) -> Mapping[Maker, Answerer]:
    """Return the answerers of one rollout worker by maker."""
    return {maker: make(setup) for maker, make in ANSWERERS.items()}
