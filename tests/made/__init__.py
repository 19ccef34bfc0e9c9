"""Builders of events, logs and settings for tests.

A test gives the fields that it is about; every other field has a plausible value. So a new field of an event changes
one builder, not every test that has such an event.
Example: `await made.log(made.requested("g-s0"), made.completed("g-s0", [5, 6]))`.
"""

from tests.made.logs import archived, log, recorded, say
from tests.made.prompts import evaluated, submitted
from tests.made.rewards import accepted, assigned, rejected, reward_failed
from tests.made.rollouts import completed, failed, progressed, requested, suspended, turn
from tests.made.run_settings import opened, settings
from tests.made.runs import finished, placement, resumed, started
from tests.made.training import activated, committed, published, saved, sealed

__all__ = [
    "accepted",
    "activated",
    "archived",
    "assigned",
    "committed",
    "completed",
    "evaluated",
    "failed",
    "finished",
    "log",
    "opened",
    "placement",
    "progressed",
    "published",
    "recorded",
    "rejected",
    "requested",
    "resumed",
    "reward_failed",
    "saved",
    "say",
    "sealed",
    "settings",
    "started",
    "submitted",
    "suspended",
    "turn",
]
