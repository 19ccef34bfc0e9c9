"""The gateway's documents: what schemathesis makes of one is answered as it says; the other has no loose end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import schemathesis.generation.jsonschema.strategy  # early: pytest rewrites it, and cannot deep in a stack
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from actors.doors import PromptDoor, RewardDoor, TrajectoryDoor
from actors.inbox import Doors, Inbox
from schemas.inbox import InboxReply
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.asyncapi import asyncapi
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from slime_events.core.config.reward import RewardSettings
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.outside_rollouts import Limits, OutsideRollouts
from storage.jetstream.address import NatsAddress
from storage.log import Readable
from storage.memory_log import MemoryLog
from tests.simulation.roles import make_outside

RUN = "sim"


class StandingRun:
    """A run with weights in which nothing moves."""

    def __init__(self, folder: Path) -> None:
        self.name, self._log, outside = RUN, MemoryLog(RUN), make_outside()
        rollouts = OutsideRollouts(outside, Limits(2, 16, None, bound=8, vocabulary=256), {})

        async def doors() -> Doors:
            return {
                "prompts": PromptDoor(outside),
                "trajectories": TrajectoryDoor(rollouts),
                "rewards": RewardDoor(self._log, RewardSettings(rm_type="outside")),
            }

        async def state() -> RunState:
            return RunState(run=RUN, published=0)

        self._inbox = Inbox(Participant(self._log, "inbox"), doors, state, NatsAddress(url=""))

    async def send(self, data: bytes, sender: str, kind: str) -> InboxReply:
        return await self._inbox.accept(data, None, sender, kind)

    async def max_bytes(self) -> int:
        return 1 << 20

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Readable]:
        yield self._log


NOT_PROMISED = [ignored_auth, positive_data_acceptance]
"""The app is asked with a token always; and what has the right form may still be no prompt of this model's: 422."""
OPERATIONS = ("prompts", "trajectories", "rewards", "group", "events")


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_breaks_the_document(name: str, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    app = gateway_app(StandingRun(tmp_path), sources, GatewaySettings(hosts=("testserver",)))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = {
        operation.ok().definition.raw["operationId"]: operation.ok() for operation in schema.get_all_operations()
    }
    assert set(operations) == set(OPERATIONS), "name the new one above"
    headers = {"authorization": f"Bearer {sources.issue('quiz')}"}

    @given(case=operations[name].as_strategy())
    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def answered_as_documented(case: schemathesis.Case) -> None:
        case.path_parameters["run_name"] = RUN
        case.call_and_validate(headers=headers, excluded_checks=NOT_PROMISED)

    answered_as_documented()


def test_every_reference_of_the_nats_document_leads_somewhere() -> None:
    document = asyncapi(RUN)

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                target: Any = document
                for part in node["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for inner in node.values():
                look(inner)
        elif isinstance(node, list):
            for inner in node:
                look(inner)

    look(document)
    addresses = {channel["address"] for channel in document["channels"].values()}
    sent = [name for name, operation in document["operations"].items() if operation["action"] == "send"]
    assert addresses == {None, "slime.sim.fates.nats", *(f"slime.sim.inbox.{name}" for name in sent)}
