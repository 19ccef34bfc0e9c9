"""A literal table of what a user may plug in, and what becomes of whatever it does there.

`Fate.OWN`: it costs its own sample, group or row, as data. `Fate.RUN`: the run fails, by an error that names the hook:
a step has no other loss, and a batch no other rewards. Nothing else comes out of any hook, whatever it raises or gives.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codec import encode
from schemas.envelope import enclose
from schemas.errors import PlugPointError
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from slime_events.core.config.data import DataSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.loop.prompts.archived_prompts import ArchivedPrompt
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import FilterDecision, run_filter
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import choose
from slime_events.plugins.rewards.outcome import Graded, RewardFailure, outcome_event, value_of
from slime_events.plugins.rewards.teacher import graded
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample
from slime_events.plugins.step_functions import CONVERT, EVAL_LOG, FILTER, LOG, PROCESS, StepFunctions
from slime_events.plugins.trainer_points import POINTS, POST_PROCESS, UserFunction
from storage.log import MAX_EVENT_BYTES
from tests import made
from tests.hostile import hooks
from tests.hostile.deeds import DEEDS, HALF
from tests.simulation.parts import Letters


class Fate(enum.Enum):
    """Define what a deed costs."""

    OWN = "its own sample, group or row"
    RUN = "the run, by a named reason"


SHOWN = ArgsView.of(RewardSettings())
HOOKS = "tests.hostile.hooks"


def _reward(function: str, *, group: bool = False, samples: int = 1) -> None:
    """Grade like a grader process: every sample has an outcome, which can be sent and written."""
    settings = RewardSettings(custom_rm_path=f"{HOOKS}:{function}", reward_key="score", rm_timeout=60.0, group_rm=group)
    worker = Worker(messages.Setup(settings, {}, str(Path.cwd())), lambda number: None)
    done: list[messages.Done] = []
    job = messages.Job([Sample(metadata={}) for _ in range(samples)], choose(settings, Sample()), group)
    worker.grade([job], done.append)
    ((answer,), outcomes) = done, done[0].outcomes
    assert len(outcomes) == samples
    sent = messages.encode(answer)
    assert len(sent) < MAX_EVENT_BYTES
    for outcome in outcomes:
        check_outcome(outcome)


def check_outcome(outcome: Graded | RewardFailure) -> None:
    event = outcome_event("s", "g", outcome)
    assert isinstance(event, RewardAssigned | RewardFailed)
    assert len(encode(enclose("r", event, at=1, producer="p"))) < MAX_EVENT_BYTES
    if isinstance(event, RewardFailed):
        assert 0 < len(event.message) <= 2_000


def _dynamic_filter() -> None:
    decision = run_filter(hooks.does, SHOWN, [Sample(reward=1.0), Sample(reward=0.0)])
    assert isinstance(decision, FilterDecision)


def _filter_reason() -> None:
    decision = run_filter(hooks.gives_a_reason, SHOWN, [Sample(reward=1.0), Sample(reward=0.0)])
    assert decision.reason is None or (decision.reason.encode() is not None and len(decision.reason) <= 2_000)


def _buffer_filter() -> None:
    prompt = made.submitted(tokens=hooks.NO_TOKENS, source=hooks.SOURCE)
    archived = ArchivedPrompt(prompt, 1, members=[Sample(group_index=0, reward=1.0)])
    BufferFilter(f"{HOOKS}:does", SHOWN).choose([(0, archived)])


def _data_source(kind: str) -> None:
    hooks.GivenSource.gives = kind
    letters: Any = Letters()
    source = UserDataSource(DataSettings(data_source_path=f"{HOOKS}:GivenSource"), SHOWN, letters, 100)
    for prompted in source.take({}, 1):
        encode(enclose("r", prompted, at=1, producer="p"))
        assert isinstance(prompted, PromptSubmitted | PromptRejected)


def _step(setting: str) -> None:
    settings = msgspec.structs.replace(RolloutSettings(), **{setting: f"{HOOKS}:does_in_step"})
    functions = StepFunctions(settings, lambda: SHOWN)
    group: Any = [Sample(reward=1.0, response_length=1, tokens=[1, 2], loss_mask=[1])]
    if setting in (FILTER, PROCESS):
        functions.look([group], [group])
    elif setting == LOG:
        assert functions.logs(0, [group], {}, 1.0) in (True, False)
    elif setting == EVAL_LOG:
        assert functions.logs_evaluation(0, "set", [group]) in (True, False)
    else:
        functions.convert([group], (1.0,), (1.0,))


def _trainer(point: Any) -> None:
    function = UserFunction(point, f"{HOOKS}:does")
    returned = function(*([None] * 6))
    assert str(function.refuse(returned, "a number"))


TABLE: dict[str, tuple[Fate, Callable[[], Any]]] = {
    "custom reward": (Fate.OWN, lambda: _reward("does")),
    "custom reward, async": (Fate.OWN, lambda: _reward("does_async")),
    "custom reward of a group": (Fate.OWN, lambda: _reward("does", group=True, samples=2)),
    "custom reward of a group, async": (Fate.OWN, lambda: _reward("does_async", group=True, samples=2)),
    "custom reward, one of a group": (Fate.OWN, lambda: _reward("does_for_each", group=True, samples=2)),
    "custom reward, under its key": (Fate.OWN, lambda: _reward("does_under_its_key")),
    "custom reward, what it leaves in the metadata": (Fate.OWN, lambda: _reward("leaves_metadata")),
    "teacher's log-probs": (Fate.OWN, lambda: _reward("leaves_log_probs")),
    "reward of a generate function": (Fate.OWN, lambda: check_outcome(graded(hooks.value(), Sample(), "score"))),
    "reward of a rollout function": (Fate.OWN, lambda: check_outcome(value_of(hooks.value(), "score"))),
    "dynamic sampling filter": (Fate.OWN, _dynamic_filter),
    "dynamic sampling filter, its reason": (Fate.OWN, _filter_reason),
    "buffer filter": (Fate.RUN, _buffer_filter),
    "data source, what it gives": (Fate.RUN, lambda: _data_source("all")),
    "data source, a prompt": (Fate.OWN, lambda: _data_source("prompt")),
    "data source, a label": (Fate.OWN, lambda: _data_source("label")),
    "data source, metadata": (Fate.OWN, lambda: _data_source("metadata")),
    "rollout sample filter": (Fate.RUN, lambda: _step(FILTER)),
    "all samples process": (Fate.RUN, lambda: _step(PROCESS)),
    "rollout log function": (Fate.RUN, lambda: _step(LOG)),
    "evaluation log function": (Fate.RUN, lambda: _step(EVAL_LOG)),
    "convert samples to train data": (Fate.RUN, lambda: _step(CONVERT)),
} | {f"trainer: {point.field}": (Fate.RUN, lambda point=point: _trainer(point)) for point in POINTS}
"""By name: what a deed costs there, and how the hook is called as its role calls it. Generate functions, tools and
sample hooks stand in test_generate.py, whole.
"""


@pytest.fixture(params=DEEDS)
def deed(request: pytest.FixtureRequest) -> Iterator[str]:
    hooks.DEED = request.param
    yield request.param
    hooks.DEED = "none"


@pytest.mark.parametrize("hook", TABLE)
def test_nothing_else_comes_out_of_a_hook(hook: str, deed: str) -> None:
    fate, call = TABLE[hook]
    error = _raised_by(call)
    if error is not None:
        assert fate is Fate.RUN or hook.startswith("dynamic sampling"), "the caller of the filter rejects the group"
        assert 0 < len(str(error)) <= 16_000
        assert HALF not in str(error)


def _raised_by(call: Callable[[], Any]) -> PlugPointError | None:
    try:
        call()
    except PlugPointError as error:
        return error
    return None


def test_every_hook_of_the_settings_is_in_the_table() -> None:
    """One that is new has to say what its deeds cost."""
    tested = {point.field for point in POINTS} | {FILTER, PROCESS, LOG, EVAL_LOG, CONVERT}
    assert POST_PROCESS in POINTS
    assert set(hooks.ELSEWHERE) | tested >= hooks.paths_in_settings()
